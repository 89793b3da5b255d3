// What each of several ranks runs in tests: tiny models, divided among the ranks, through the whole engine. All ranks
// run the same requests at the same time, and print what they got, a line of JSON each.
import { findLibrary } from "../../ffi/native.ts";
import { LoadError } from "../../src/files/load-error.ts";
import { array } from "../../src/mlx/array.ts";
import { type Connections, type Group, MlxGroup } from "../../src/mlx/distributed.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { type Launched, Runner, type StepInputs } from "../../src/model/runner.ts";
import { StageRunner } from "../../src/model/stage-runner.ts";
import type { StateStore } from "../../src/model/state-store.ts";
import { groupsOf } from "../../src/model/states.ts";
import type { Parallel } from "../../src/model/weights.ts";
import { deviceOf } from "./devices.ts";
import { type Answer, makeEngine } from "./engine.ts";
import { goldenOf, loadTinyModel, type TinyCase, tinyCase } from "./tiny-models.ts";

/** `share`: of the bytes of all weights, and of a token's keys and values. */
export type RankResult = {
  name: string;
  rank: number;
  isRight: boolean;
  /** How often sequences were preempted, and how much of a prompt was in the prefix cache. */
  preemptions: number;
  cachedTokens: number;
  share: { weights: number; kv: number };
  error?: string;
};

/** Answers end in the third block of their sequences. */
const TOKENS = 26;

/** Prompts are chunked, and there is room for the blocks or the states of two answers: others are preempted. */
const LIMITS = { tokenBudget: 24, blocks: 5, slots: 3 };

/** Throws on all ranks where one cannot load it: the others would wait for it. */
function loadTogether(group: Group, load: () => LoadedModel): LoadedModel {
  let [model, failure]: [LoadedModel | undefined, unknown] = [undefined, undefined];
  try {
    model = load();
  } catch (error) {
    failure = error;
  }
  using _ = new Scope();
  const [failures] = group.allSum(array(Uint32Array.of(model ? 0 : 1))).numbers();
  if (model && failures === 0) return model;
  model?.free();
  throw failure ?? new LoadError("another rank could not load it");
}

/** The first rank's runner, or one that follows it: the first rank's tokens are everybody's. */
function stageRunner(model: LoadedModel, store: StateStore, group: Group) {
  const device = deviceOf("cpu");
  const isFirst = group.rank === 0;
  const runner = isFirst ? new Runner(device, model, store) : new StageRunner(model, store);
  return {
    forwards: 0,
    depth: 1,
    launch(inputs: StepInputs): Launched {
      const launched = runner.launch(inputs);
      const read = () => {
        const { sampled } = launched.read();
        if (inputs.samples.length === 0) return { sampled: [], scored: [], sums: [] };
        using _ = new Scope();
        const own = inputs.samples.map((_, i) => sampled[i]?.token ?? 0);
        const tokens = group.fromFirst(array(Uint32Array.from(own))).numbers();
        return { sampled: tokens.map((token) => ({ token })), scored: [], sums: [] };
      };
      return { draw: launched.draw, read };
    },
    free: () => runner.free(),
  };
}

function run(tiny: TinyCase, group: Group, parallel: Parallel): RankResult {
  const { prompt, greedy } = goldenOf(tiny);
  const device = deviceOf("cpu");
  using made = new DisposableStack();
  const owned = <T extends { free(): void }>(each: T): T => made.adopt(each, () => each.free());
  const whole = owned(loadTinyModel(tiny, { device }));
  const windows = groupsOf(whole.states).map(({ window }) => window);
  const model = owned(
    loadTogether(group, () => loadTinyModel(tiny, { device, group, parallel, windows })),
  );
  const runnerOf = (store: StateStore) => stageRunner(model, store, group);
  const stage = parallel === "pipeline" ? { runnerOf } : {};
  const hasSlots = whole.states.slots.length > 0;
  const expected = greedy.slice(0, TOKENS).join();
  // Ranks must take the same steps, however long each took.
  let ms = 0;
  const engine = owned(makeEngine(model, { nowMs: () => ms++, hasSlots, ...stage, ...LIMITS }));
  const sampling = { temperature: 0 };
  const request = { prompt: Uint32Array.from(prompt), maxTokens: TOKENS, sampling };
  const answers = [engine.submit(request), engine.submit({ ...request, n: 2 })].flat();
  engine.run();
  // One after the other: the last finds its first block, and its state where there was room for it, in the prefix cache.
  const [alone, again] = [1, 2].map(() => {
    const [answer] = engine.submit(request) as [Answer];
    engine.run();
    return answer;
  }) as [Answer, Answer];
  const kvOf = ({ states }: typeof model) =>
    states.kvs.reduce((sum, { kvHeads, headDim }) => sum + kvHeads * headDim, 0);
  return {
    name: tiny.name,
    rank: group.rank,
    isRight: [...answers, alone, again].every(({ tokens }) => tokens.join() === expected),
    preemptions: engine.engine.scheduler.preemptions,
    cachedTokens: again.cachedTokens,
    share: { weights: model.weightBytes / whole.weightBytes, kv: kvOf(model) / kvOf(whole) },
  };
}

if (import.meta.main) {
  const { backend } = openMlx(findLibrary(), { device: "cpu" });
  const [connections, parallel, ...names] = process.argv.slice(2) as [
    Connections,
    Parallel,
    ...string[],
  ];
  const group = new MlxGroup(connections, backend);
  for (const name of names) {
    try {
      console.log(JSON.stringify(run(tinyCase(name), group, parallel)));
    } catch (error) {
      const failed = { name, rank: group.rank, isRight: false, error: String(error) };
      console.log(JSON.stringify(failed));
      if (error instanceof LoadError) continue;
      // The others wait in a collective that this rank has not come to.
      process.exit(1);
    }
  }
  process.exit(0);
}
