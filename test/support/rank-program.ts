// What each of several ranks runs in tests: tiny models, divided among the ranks, through the whole engine. All ranks
// run the same requests at the same time, and print what they got, a line of JSON each.
import { findLibrary } from "../../ffi/native.ts";
import { LoadError } from "../../src/files/load-error.ts";
import { array } from "../../src/mlx/array.ts";
import { type Connections, type Group, MlxGroup } from "../../src/mlx/distributed.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { groupsOf, slotBytes } from "../../src/model/contract/states.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import type { Launched, StepInputs } from "../../src/model/run/step.ts";
import type { StateStore } from "../../src/model/state/state-store.ts";
import type { Parallel } from "../../src/model/weights/stages.ts";
import { rankRunner, stepsOnRanks } from "../../src/ranks/runner.ts";
import { deviceOf } from "./devices.ts";
import { type Answer, makeEngine, type TestEngine } from "./engine.ts";
import { type RankSubject, rankSubject } from "./rank-subject.ts";

/** `share`: of the bytes of all weights, of a token's keys and values, and of a sequence's recurrent states. */
export type RankResult = {
  name: string;
  parallel: Parallel;
  rank: number;
  /** Of the model, and of the tiny model of that name that it was made of where it had fewer than there are ranks. */
  layers: { own: number; all: number };
  isRight: boolean;
  /** The most steps under way. */
  inFlight: number;
  /** How often sequences were preempted, and how much of a prompt was in the prefix cache. */
  preemptions: number;
  cachedTokens: number;
  share: { weights: number; kv: number; slots: number };
  error?: string;
};

/** Answers end in the third block of their sequences. */
const TOKENS = 26;

/** Prompts are chunked, and there is room for the blocks or the states of two answers: others are preempted. */
const LIMITS = { tokenBudget: 24, blocks: 5, slots: 3 };

/** Others decode, too, when an answer has so many. */
const TOKENS_BEFORE = 12;

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

/** MLX's ring sends hidden states and sums over the same sockets: tokens go another way than hidden states. */
type Groups = { hidden: Group; tokens: Group };

type Part = { group: Group; parallel: Parallel };

/** The rank's runner, with as many steps under way as in the server. The first rank's tokens are everybody's. */
function stepRunner(model: LoadedModel, store: StateStore, part: Part & { tokens: Group }) {
  const { group, parallel, tokens: everybodys } = part;
  const runner = rankRunner(deviceOf("cpu"), model, store, part);
  let underWay = 0;
  return {
    forwards: 0,
    ...stepsOnRanks(parallel, group.size),
    inFlight: 0,
    launch(inputs: StepInputs): Launched {
      const launched = runner.launch(inputs);
      this.inFlight = Math.max(this.inFlight, ++underWay);
      const read = () => {
        underWay -= 1;
        const { sampled } = launched.read();
        if (inputs.samples.length === 0) return { sampled: [], scored: [], sums: [] };
        using _ = new Scope();
        const own = inputs.samples.map((_, i) => sampled[i]?.token ?? 0);
        const tokens = everybodys.fromFirst(array(Uint32Array.from(own))).numbers();
        return { sampled: tokens.map((token) => ({ token })), scored: [], sums: [] };
      };
      return { draw: (lookbacks) => launched.draw(lookbacks), read };
    },
    free: () => runner.free(),
  };
}

const requestOf = (prompt: readonly number[]) => {
  return { prompt: Uint32Array.from(prompt), maxTokens: TOKENS, sampling: { temperature: 0 } };
};

/** What one rank draws behind each prompt. */
function drawnAlone(model: LoadedModel, prompts: readonly (readonly number[])[]): string[] {
  const engine = makeEngine(model);
  const answers = prompts.map((prompt) => engine.submit(requestOf(prompt))[0]!);
  engine.run();
  engine.free();
  return answers.map(({ tokens }) => tokens.join());
}

type Answers = { isRight: boolean; preemptions: number; cachedTokens: number };

/**
 * Runs requests one beside the other and one after the other, and compares what they get with what one rank draws: on the
 * first rank, whose tokens are everybody's.
 */
function answersOf(
  engine: TestEngine,
  { prompt, greedy }: RankSubject,
  { rank, whole }: { rank: number; whole: LoadedModel },
): Answers {
  const reversed = prompt.toReversed();
  const drawn = rank === 0 ? drawnAlone(whole, [prompt, reversed]) : undefined;
  const request = requestOf(prompt);
  const forks = [engine.submit(request), engine.submit({ ...request, n: 3 })].flat();
  // When they have taken all that there is, one of a higher priority comes.
  while (forks[0]!.tokens.length < TOKENS_BEFORE) engine.step();
  const [urgent] = engine.submit({ ...requestOf(reversed), priority: "HIGH" }) as [Answer];
  engine.run();
  // One after the other: the last finds its first block, and its state where there was room for it, in the prefix cache.
  const [alone, again] = [1, 2].map(() => {
    const [answer] = engine.submit(request) as [Answer];
    engine.run();
    return answer;
  }) as [Answer, Answer];
  const isGolden = !greedy || !drawn || drawn[0] === greedy.slice(0, TOKENS).join();
  const isAs = (i: number, { tokens }: Answer) => !drawn || tokens.join() === drawn[i];
  const isSame = [...forks, alone, again].every((answer) => isAs(0, answer));
  return {
    isRight: isGolden && isSame && isAs(1, urgent),
    preemptions: engine.engine.scheduler.preemptions,
    cachedTokens: again.cachedTokens,
  };
}

function shareOf(model: LoadedModel, whole: LoadedModel): RankResult["share"] {
  const kvOf = ({ states }: LoadedModel) =>
    states.kvs.reduce((sum, { kvHeads, headDim }) => sum + kvHeads * headDim, 0);
  return {
    weights: model.weightBytes / whole.weightBytes,
    kv: kvOf(model) / kvOf(whole),
    slots: slotBytes(model.states) / slotBytes(whole.states),
  };
}

function run(name: string, groups: Groups, parallel: Parallel): RankResult {
  const device = deviceOf("cpu");
  const { rank, size } = groups.hidden;
  using made = new DisposableStack();
  const owned = <T extends { free(): void }>(each: T): T => made.adopt(each, () => each.free());
  const known = rankSubject(name);
  const loaded = owned(known.load({ device }));
  const isDeep = parallel === "tensor" || loaded.shape.layers >= size;
  const subject = (!isDeep && known.deepened?.(size + 1, { device })) || known;
  const whole = subject === known ? loaded : owned(subject.load({ device }));
  const windows = groupsOf(whole.states).map(({ window }) => window);
  const part = { group: groups.hidden, parallel };
  const model = owned(
    loadTogether(groups.tokens, () => subject.load({ device, windows, ...part })),
  );
  let runner: ReturnType<typeof stepRunner> | undefined;
  const runnerOf = (store: StateStore) => {
    runner = stepRunner(model, store, { ...part, tokens: groups.tokens });
    return runner;
  };
  const hasSlots = whole.states.slots.length > 0;
  // Ranks must take the same steps, however long each took.
  let ms = 0;
  const engine = owned(makeEngine(model, { nowMs: () => ms++, hasSlots, runnerOf, ...LIMITS }));
  return {
    name,
    parallel,
    rank,
    layers: { own: loaded.shape.layers, all: whole.shape.layers },
    ...answersOf(engine, subject, { rank, whole }),
    inFlight: runner!.inFlight,
    share: shareOf(model, whole),
  };
}

if (import.meta.main) {
  const { backend } = openMlx(findLibrary(), { device: "cpu" });
  const [connections, ...subjects] = process.argv.slice(2) as [Connections, ...string[]];
  const hidden = new MlxGroup(connections, backend);
  const tokens = connections === "shared" ? hidden : new MlxGroup("shared", backend);
  for (const subject of subjects) {
    const [, parallel, name] = /^(\w+):(.*)$/.exec(subject) as unknown as [
      string,
      Parallel,
      string,
    ];
    try {
      console.log(JSON.stringify(run(name, { hidden, tokens }, parallel)));
    } catch (error) {
      const failed = { name, parallel, rank: hidden.rank, isRight: false, error: String(error) };
      console.log(JSON.stringify(failed));
      if (error instanceof LoadError) continue;
      // The others wait in a collective that this rank has not come to.
      process.exit(1);
    }
  }
  process.exit(0);
}
