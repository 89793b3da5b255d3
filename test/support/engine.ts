// A real model with its engine on this thread, step by step under a test's control.

import type { Device } from "../../src/device/device.ts";
import type { EngineEvent, EngineOptions, EngineRequest } from "../../src/engine/protocol.ts";
import { defaultEngineOptions } from "../../src/engine/protocol.ts";
import { type CacheLayout, KvCache } from "../../src/kv/kv-cache.ts";
import { array } from "../../src/mlx/array.ts";
import { slice } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { groupsOf } from "../../src/model/contract/states.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { Runner } from "../../src/model/run/runner.ts";
import { draw, isPenalized, type Sampled } from "../../src/model/run/sampler.ts";
import type { StepInputs } from "../../src/model/run/step.ts";
import { TokenCounts } from "../../src/model/run/token-counts.ts";
import { StateStore } from "../../src/model/state/state-store.ts";
import { ModelEngine, type ModelEngineParts } from "../../src/worker/model-engine.ts";
import type { StepRunner } from "../../src/worker/pipeline.ts";
import { ContiguousKv, contiguousStep } from "./contiguous-kv.ts";
import { deviceOf } from "./devices.ts";

export type Answer = {
  tokens: number[];
  logprobs: (number | undefined)[];
  finished: EngineEvent["finished"];
  cachedTokens: number;
  /** The event of its first token. */
  first?: EngineEvent;
};

export type TestEngine = ReturnType<typeof makeEngine>;

/** On a CPU unless told otherwise. `watch` sees the inputs of each step, and may change them. */
export function makeEngine(
  model: LoadedModel,
  options: Partial<EngineOptions> & {
    device?: Device;
    slots?: number;
    matchers?: ModelEngineParts["matchers"];
    nowMs?: ModelEngineParts["nowMs"];
    /** Whether the model has slots, where that is not for its own states to say. */
    hasSlots?: boolean;
    /** In place of the runner that a model has. */
    runnerOf?: (store: StateStore) => StepRunner & { free(): void };
  } = {},
  watch: (inputs: StepInputs, step: number) => StepInputs = (inputs) => inputs,
) {
  const { blocks = 64, slots = 12, device = deviceOf("cpu"), ...more } = options;
  const { matchers, nowMs, runnerOf, hasSlots = model.states.slots.length > 0, ...others } = more;
  const all = { ...defaultEngineOptions, ...others, blocks };
  const layout: CacheLayout = {
    groups: groupsOf(model.states).map(({ window }) => ({ blocks, window })),
    slots: hasSlots ? slots : undefined,
  };
  const store = new StateStore(device, model.states, layout, model.dtype);
  const runner = runnerOf?.(store) ?? new Runner(device, model, store);
  const cache = new KvCache(layout);
  let steps = 0;
  /** Of the steps those that landed while the next one was launched. */
  const landed = { steps: 0, meanwhile: 0 };
  const engine = new ModelEngine({
    name: "test",
    cache,
    runner: {
      get forwards() {
        return runner.forwards;
      },
      depth: runner.depth,
      stages: "stages" in runner ? runner.stages : undefined,
      launch: (inputs, landOthers) =>
        runner.launch(watch(inputs, steps++), () => {
          const before = landed.steps;
          landOthers();
          landed.meanwhile += landed.steps - before;
        }),
    },
    vocabulary: model.shape.vocabulary,
    maxLength: model.shape.maxPositions,
    originalLength: model.states.originalLength,
    lookback: 100,
    tokenBudget: device.tokenBudget,
    besideTokens: device.besideTokens,
    stepMs: device.stepMs,
    options: all,
    onStep: ({ events }) => {
      landed.steps += 1;
      for (const { id, event } of events) {
        const answer = answers.get(id)![event.index]!;
        if (event.token !== undefined) {
          answer.first ??= event;
          answer.tokens.push(event.token);
          answer.logprobs.push(event.logprob);
        }
        answer.finished = event.finished;
        answer.cachedTokens = event.cachedTokens;
      }
    },
    ...(matchers && { matchers }),
    ...(nowMs && { nowMs }),
  });
  const answers = new Map<number, Answer[]>();
  let nextId = 1;
  const submit = (request: EngineRequest): Answer[] => {
    const id = nextId++;
    const refused = engine.submit(id, request);
    if (refused) throw new Error(refused);
    const made = Array.from({ length: request.n ?? 1 }, (): Answer => {
      return { tokens: [], logprobs: [], finished: undefined, cachedTokens: 0 };
    });
    answers.set(id, made);
    return made;
  };
  const step = (): boolean => {
    const hasStepped = engine.step();
    engine.check();
    return hasStepped;
  };
  const run = () => {
    while (!engine.scheduler.idle) step();
  };
  const free = () => {
    runner.free();
    store.free();
  };
  return { engine, pool: cache.pools[0]!, runner, landed, submit, step, run, free };
}

/** The same request alone, with the plain KV store and no scheduler. */
export function generateAlone(model: LoadedModel, request: EngineRequest, index = 0): Answer {
  const { prompt, maxTokens } = request;
  const device = deviceOf("cpu");
  const sampling = { ...request.sampling, seed: (request.sampling.seed ?? 0) + index };
  const stops = new Set(request.stopTokens);
  const kv = new ContiguousKv();
  const tokens = [...prompt];
  const logprobs: (number | undefined)[] = [];
  let next = tokens.slice();
  let finished: EngineEvent["finished"];
  while (!finished) {
    using _ = new Scope();
    const step = contiguousStep([{ kv, count: next.length }]);
    const hidden = model.forward(array(Uint32Array.from(next)), step);
    const counts = new TokenCounts(prompt.length);
    counts.update(Uint32Array.from(tokens));
    const row = {
      sampling,
      index: tokens.length - prompt.length,
      counts: isPenalized(sampling) ? counts : undefined,
    };
    const logits = model.logits(slice(hidden, 0, -1));
    const [drawn] = draw(device, logits, [row], [0], device.best(logits)).read() as [Sampled];
    tokens.push(drawn.token!);
    logprobs.push(drawn.logprob);
    next = [drawn.token!];
    if (stops.has(drawn.token!)) finished = "stop";
    else if (tokens.length - prompt.length === maxTokens) finished = "length";
  }
  kv.free();
  return { tokens: tokens.slice(prompt.length), logprobs, finished, cachedTokens: 0 };
}
