// The cases of parity on a device that runs launches in random orders: tiny models of each kind of state, and requests
// of all samplings in one crowd.
import { expect } from "bun:test";
import type { EngineRequest } from "../../src/engine/protocol.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { deviceOf } from "./devices.ts";
import { type Answer, makeEngine, type TestEngine } from "./engine.ts";
import {
  aloneOf,
  type Feature,
  features,
  prompts,
  runCrowd,
  type Seen,
  samplings,
  watchOf,
} from "./parity.ts";
import { type Mutation, RandomOrder } from "./random-order.ts";
import { loadTinyModel, tinyCase } from "./tiny-models.ts";

/** What their layers keep. */
const orderModels = {
  llama: "keys and values",
  gpt_oss: "keys and values, some within a window",
  gemma4_text: "keys and values, some of another layer",
  deepseek_v3: "latents",
  qwen3_5: "recurrent states, and keys and values",
  mamba2: "recurrent states",
} as const;

export type OrderModel = keyof typeof orderModels;

/** Prompts that are asked: few, and most of them soon need another block. */
const some = prompts.filter(({ length }) => length % BLOCK_TOKENS > 20).slice(0, 4);

const CHUNKS = "prompts in chunks, one after the other";
const FORKS = "three answers, in steps of few tokens";

/** The cases of parity, more chunks and copies, each in a step of its own, and requests that end early. */
const orderFeatures: readonly (Feature & { aborts?: true })[] = [
  ...features,
  {
    name: CHUNKS,
    options: { tokenBudget: 16, maxBatch: 1 },
    happened: (_engine, _answers, { chunks }) => expect(chunks).toBeGreaterThan(4),
  },
  {
    name: FORKS,
    options: { tokenBudget: 64, maxBatch: 18, blocks: 200 },
    n: 3,
    happened: (_engine, _answers, { copies }) => expect(copies).toBeGreaterThan(4),
  },
  {
    name: "aborted beside others",
    options: { tokenBudget: 32, maxBatch: 8, blocks: 10 },
    aborts: true,
    happened: (_engine, answers) => {
      const ends = answers.flat().map(({ finished }) => finished);
      expect(ends.filter((end) => end === undefined).length).toBeGreaterThan(1);
    },
  },
];

export type OrderCase = { model: OrderModel; feature: string };

const needBlocks = [
  "forced preemption",
  "forks that copy before they write, and are preempted",
  FORKS,
];

/** All cases. A model without blocks does not run out of them, and copies none. */
export const orderCases: readonly OrderCase[] = (Object.keys(orderModels) as OrderModel[]).flatMap(
  (model) =>
    orderFeatures
      .filter(({ name }) => model !== "mamba2" || !needBlocks.includes(name))
      .map(({ name }) => ({ model, feature: name })),
);

/** What is taken out, and the case that is to miss it. */
export type Missing = { mutation: Mutation; of: OrderCase };

const without = (mutation: Mutation, feature: string, ...models: OrderModel[]): Missing[] =>
  models.map((model) => ({ mutation, of: { model, feature } }));

/** The copies of each pool alone, so many: the step behind them must miss none. */
const withoutCopies = (pools: number, model: OrderModel): Missing[] =>
  Array.from({ length: pools }, (_, pool) =>
    without({ kernel: "copy", pool }, FORKS, model),
  ).flat();

const withBlocks = ["llama", "gpt_oss", "deepseek_v3", "qwen3_5"] as const;

export const mutations: readonly Missing[] = [
  ...without({ after: "a step behind the step before" }, CHUNKS, ...withBlocks, "mamba2"),
  ...without({ after: "a step behind its copies" }, FORKS, ...withBlocks),
  ...without({ after: "copies behind the step before" }, FORKS, ...withBlocks),
  ...without({ after: "gathered blocks behind what is written to them" }, CHUNKS, "llama"),
  ...without({ kernel: "prepare" }, CHUNKS, "llama", "gemma4_text"),
  ...without({ kernel: "decode" }, CHUNKS, "llama", "gemma4_text"),
  ...without({ kernel: "latent_write" }, CHUNKS, "deepseek_v3"),
  ...without({ kernel: "latent_decode_parts" }, CHUNKS, "deepseek_v3"),
  ...without({ kernel: "convolve" }, CHUNKS, "qwen3_5"),
  ...without({ kernel: "scan_heads" }, CHUNKS, "qwen3_5"),
  ...without({ kernel: "scan" }, CHUNKS, "mamba2"),
  // Keys and values of three layers, and latents of as many.
  ...withoutCopies(6, "llama"),
  ...withoutCopies(3, "deepseek_v3"),
];

/** Within how many seeds a mutation is to be missed. */
export const MOST_SEEDS = 20;

/** The first seed whose order shows what is taken out. */
export function seedThatMisses(cases: OrderCases, { mutation, of }: Missing): number | undefined {
  for (let seed = 1; seed <= MOST_SEEDS; seed++) {
    if (cases.run(of, seed, mutation).wrong > 0) return seed;
  }
  return undefined;
}

type Loaded = { model: LoadedModel; alone: ReturnType<typeof aloneOf> };

/** What a case has shown: requests whose answers differ from those alone, and what ran. */
export type Outcome = { wrong: number; order: RandomOrder };

export class OrderCases {
  readonly #loaded = new Map<OrderModel, Loaded>();

  run({ model: name, feature }: OrderCase, seed: number, mutation?: Mutation): Outcome {
    const { model, alone } = this.#load(name);
    const found = orderFeatures.find((each) => each.name === feature)!;
    const { options, n = 1, twice, aborts, happened } = found;
    // Fewer requests are to run out of blocks too.
    const blocks = (options.blocks ?? 100) / 2;
    const kinds = Object.values(samplings);
    const requests = some.map((prompt, i): EngineRequest => {
      // A token may come out right by chance; how likely it was does not.
      return { prompt, maxTokens: 8, sampling: { ...kinds[i % kinds.length]!, logprobs: 1 }, n };
    });
    const seen: Seen = { copies: 0, chunks: 0 };
    const order = new RandomOrder(seed, mutation);
    let engine: TestEngine | undefined;
    try {
      const { device } = order;
      engine = makeEngine(model, { ...options, blocks, device, nowMs: ticks() }, watchOf(seen));
      const first = (aborts ? runAborting : runCrowd)(engine, requests, 1);
      const answers = twice ? runCrowd(engine, requests, 2) : first;
      if (!mutation) happened(engine, answers, seen, some.length / prompts.length / 2);
      const isAborted = ({ finished }: Answer) => aborts && !finished;
      const wrong = answers.filter((own, i) =>
        own.some((each, index) => !isAborted(each) && !isSame(each, alone(requests[i]!, index))),
      );
      return { wrong: wrong.length, order };
    } finally {
      engine?.free();
      order.stop();
    }
  }

  /** A step whose prompt is computed and cannot be drawn, and another prompt in its blocks: whether that gets its tokens. */
  runUndrawn(seed: number): boolean {
    const { model, alone } = this.#load("llama");
    const [first, second] = some.map((prompt): EngineRequest => {
      return { prompt, maxTokens: 4, sampling: samplings.penalties! };
    });
    const order = new RandomOrder(seed);
    const engine = makeEngine(
      model,
      { device: order.device, blocks: 2, maxBatch: 1 },
      (inputs, step) => {
        if (step > 0) return inputs;
        const samples = inputs.samples.map(({ at, row }) => {
          const sampling = {
            ...row.sampling,
            get temperature(): number {
              throw new Error("on purpose");
            },
          };
          return { at, row: { ...row, sampling } };
        });
        return { ...inputs, samples };
      },
    );
    try {
      const [[failed], [answer]] = [engine.submit(first!), engine.submit(second!)];
      engine.run();
      expect(failed!.finished).toBe("error");
      return isSame(answer!, alone(second!));
    } finally {
      engine.free();
      order.stop();
    }
  }

  free(): void {
    for (const { model } of this.#loaded.values()) model.free();
    this.#loaded.clear();
  }

  #load(name: OrderModel): Loaded {
    return this.#loaded.getOrInsertComputed(name, () => {
      const model = loadTinyModel(tinyCase(name), { device: deviceOf("cpu") });
      return { model, alone: aloneOf(model) };
    });
  }
}

/** A clock that is the same on a busy machine: what a step computes depends on how long others took. */
function ticks(): () => number {
  let ms = 0;
  return () => ms++;
}

/** Runs requests, and aborts every second while a step is under way that computes it: it does not end then. */
function runAborting(engine: TestEngine, requests: readonly EngineRequest[]): Answer[][] {
  const answers = requests.map((each, i) => {
    const answer = engine.submit(each);
    engine.step();
    if (i % 2 === 0) engine.engine.abort(i + 1);
    return answer;
  });
  engine.run();
  return answers;
}

function isSame(found: Answer, expected: Answer): boolean {
  return (
    found.tokens.join() === expected.tokens.join() &&
    expected.logprobs.every(
      (each, i) => each === undefined || Math.abs(each - found.logprobs[i]!) < 1e-3,
    )
  );
}
