// A real model with its engine on this thread, step by step under a test's control.

import { backend } from "../../ffi/native.ts";
import type { EngineEvent, EngineOptions, EngineRequest } from "../../src/engine/protocol.ts";
import { defaultEngineOptions } from "../../src/engine/protocol.ts";
import { BlockPool } from "../../src/kv/blocks.ts";
import { array } from "../../src/mlx/array.ts";
import { slice } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { DeviceKvStore } from "../../src/model/device-kv-store.ts";
import { DeviceRunner } from "../../src/model/device-runner.ts";
import { makeKvStore } from "../../src/model/kv-store.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { Runner, type StepInputs } from "../../src/model/runner.ts";
import { type Sampled, sample } from "../../src/model/sampler.ts";
import { ModelEngine } from "../../src/worker/model-engine.ts";
import { ContiguousKv, contiguousStep } from "./contiguous-kv.ts";
import { PlainAttention } from "./plain-attention.ts";

export type Answer = {
  tokens: number[];
  logprobs: (number | undefined)[];
  finished: EngineEvent["finished"];
  cachedTokens: number;
  /** The event of its first token. */
  first?: EngineEvent;
};

export type TestEngine = ReturnType<typeof makeEngine>;

/**
 * `store`: a CPU's, plain arithmetic in the place of a GPU's, or what the tests run on. `watch` sees the
 * inputs of each step, and may change them.
 */
export function makeEngine(
  model: LoadedModel,
  options: Partial<EngineOptions> & { store?: keyof typeof stores } = {},
  watch: (inputs: StepInputs, step: number) => StepInputs = (inputs) => inputs,
) {
  const { blocks = 64, store: kind = "host", ...others } = options;
  const all = { ...defaultEngineOptions, ...others, blocks };
  const { store, runner } = stores[kind](model, blocks);
  const pool = new BlockPool(blocks);
  let steps = 0;
  const engine = new ModelEngine({
    name: "test",
    pool,
    runner: {
      get forwards() {
        return runner.forwards;
      },
      depth: runner.depth,
      launch: (inputs) => runner.launch(watch(inputs, steps++)),
    },
    vocabulary: model.shape.vocabulary,
    maxLength: model.shape.maxPositions,
    lookback: 100,
    options: all,
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
    const result = engine.step();
    for (const { id, event } of result?.events ?? []) {
      const answer = answers.get(id)![event.index]!;
      if (event.token !== undefined) {
        answer.first ??= event;
        answer.tokens.push(event.token);
        answer.logprobs.push(event.logprob);
      }
      answer.finished = event.finished;
      answer.cachedTokens = event.cachedTokens;
    }
    engine.check();
    return result !== undefined;
  };
  const run = () => {
    while (!engine.scheduler.idle) step();
  };
  const free = () => {
    runner.free();
    store.free();
  };
  return { engine, pool, runner, submit, step, run, free };
}

const stores = {
  host(model: LoadedModel, blocks: number) {
    const store = makeKvStore(model.shape, blocks, model.dtype, "cpu");
    return { store, runner: new Runner(model, store) };
  },
  device(model: LoadedModel, blocks: number) {
    const attention = new PlainAttention(model.shape);
    const store = new DeviceKvStore(model.shape, blocks, model.dtype, attention);
    return { store, runner: new DeviceRunner(model, store) };
  },
  own(model: LoadedModel, blocks: number) {
    if (backend() === "cpu") return stores.host(model, blocks);
    const store = makeKvStore(model.shape, blocks, model.dtype, backend());
    return { store, runner: new DeviceRunner(model, store) };
  },
};

/** The same request alone, with the plain KV store and no scheduler. */
export function generateAlone(model: LoadedModel, request: EngineRequest, index = 0): Answer {
  const { prompt, maxTokens } = request;
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
    const row = {
      sampling,
      tokens: () => Uint32Array.from(tokens),
      promptLength: prompt.length,
      index: tokens.length - prompt.length,
    };
    const [drawn] = sample(model.logits(slice(hidden, 0, -1)), [row]).read() as [Sampled];
    tokens.push(drawn.token!);
    logprobs.push(drawn.logprob);
    next = [drawn.token!];
    if (stops.has(drawn.token!)) finished = "stop";
    else if (tokens.length - prompt.length === maxTokens) finished = "length";
  }
  kv.free();
  return { tokens: tokens.slice(prompt.length), logprobs, finished, cachedTokens: 0 };
}
