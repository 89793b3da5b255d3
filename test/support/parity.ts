// The cases of parity: whatever the scheduler does to requests, their tokens are those they get alone.
import { expect } from "bun:test";
import type { EngineOptions, EngineRequest, Sampling } from "../../src/engine/protocol.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import type { StepInputs } from "../../src/model/run/step.ts";
import { type Answer, generateAlone, type TestEngine } from "./engine.ts";
import { makeRandom } from "./random.ts";

const random = makeRandom(7);
export const prompts = Array.from({ length: 24 }, (_, i) =>
  Uint32Array.from({ length: 3 + ((i * 13) % 90) }, () => random.below(200)),
);

export const samplings: Record<string, Sampling> = {
  greedy: { temperature: 0 },
  penalties: {
    temperature: 0,
    repetitionPenalty: 1.3,
    presencePenalty: 0.4,
    frequencyPenalty: 0.2,
  },
  seed: { temperature: 1, seed: 1234 },
  logprobs: { temperature: 0, logprobs: 3 },
  top_p: { temperature: 0.9, topP: 0.8, seed: 99 },
};

/** What a request gets alone, computed once. */
export function aloneOf(model: LoadedModel): (request: EngineRequest, index?: number) => Answer {
  const before = new Map<string, Answer>();
  return (each, index = 0) => {
    const key = JSON.stringify([[...each.prompt], each.sampling, each.maxTokens, index]);
    return before.getOrInsertComputed(key, () => generateAlone(model, each, index));
  };
}

export function expectSame(found: Answer, expected: Answer): void {
  expect(found.tokens).toEqual(expected.tokens);
  expect(found.finished).toBe(expected.finished);
  for (const [i, logprob] of expected.logprobs.entries()) {
    if (logprob !== undefined) expect(found.logprobs[i]).toBeCloseTo(logprob, 3);
  }
}

/** Runs requests that join at random steps; what each got. */
export function runCrowd(
  engine: TestEngine,
  requests: readonly EngineRequest[],
  seed: number,
): Answer[][] {
  const joins = makeRandom(seed);
  const answers: Answer[][] = [];
  for (const each of requests) {
    answers.push(engine.submit(each));
    for (let i = joins.below(4); i > 0; i--) engine.step();
  }
  engine.run();
  return answers;
}

/** What must have happened, or a case proves nothing. */
export type Seen = { copies: number; chunks: number };

/** Counts it, as an engine's `watch`. */
export function watchOf(seen: Seen): (inputs: StepInputs) => StepInputs {
  return (inputs) => {
    seen.copies += inputs.copies.length;
    seen.chunks += inputs.rows.filter(({ count, start }) => count > 1 && start > 0).length;
    return inputs;
  };
}

export type Feature = {
  name: string;
  options: Partial<EngineOptions>;
  n?: number;
  /** `share`: that of all prompts that were asked. */
  happened(engine: TestEngine, answers: Answer[][], seen: Seen, share?: number): void;
  twice?: boolean;
};

export const features: Feature[] = [
  {
    name: "chunked prefill",
    options: { tokenBudget: 16, maxBatch: 8 },
    happened: (_engine, _answers, { chunks }, share = 1) =>
      expect(chunks).toBeGreaterThan(20 * share),
  },
  {
    name: "prefix hit",
    options: { maxBatch: 8, blocks: 200 },
    twice: true,
    happened: (_engine, answers, _seen, share = 1) => {
      const hits = answers.filter(([answer]) => answer!.cachedTokens > 0);
      expect(hits.length).toBeGreaterThan(10 * share);
    },
  },
  {
    name: "forced preemption",
    options: { maxBatch: 8, blocks: 10 },
    happened: ({ engine }) => expect(engine.scheduler.preemptions).toBeGreaterThan(0),
  },
  {
    name: "three answers",
    options: { maxBatch: 8, blocks: 200 },
    n: 3,
    happened: (_engine, answers) => expect(answers.every((each) => each.length === 3)).toBe(true),
  },
  {
    name: "forks that copy before they write, and are preempted",
    options: { maxBatch: 6, blocks: 12 },
    n: 3,
    happened: ({ engine }, _answers, { copies }, share = 1) => {
      expect(copies).toBeGreaterThan(10 * share);
      expect(engine.scheduler.preemptions).toBeGreaterThan(0);
    },
  },
];
