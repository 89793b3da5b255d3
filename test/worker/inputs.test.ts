import { describe, expect, test } from "bun:test";
import { Held } from "../../src/kv/kv-cache.ts";
import { FairQueue } from "../../src/schedule/queue.ts";
import type { Batch, Row } from "../../src/schedule/scheduler.ts";
import { Sequence } from "../../src/schedule/sequence.ts";
import { prepare, type Wanted } from "../../src/worker/inputs.ts";

/** A sequence of `length` tokens, id * 1000 and up, in blocks id * 10 and up. */
function sequenceOf(id: number, length: number): Sequence {
  const options = {
    id,
    prompt: Uint32Array.from({ length }, (_, i) => id * 1000 + i),
    maxTokens: 10,
    minTokens: 0,
    priority: "NORMAL",
    arrivalMs: 0,
    stopTokens: new Set<number>(),
    rootKey: "root",
  } as const;
  const flow = new FairQueue<Sequence>().enter("", "NORMAL", []);
  const held = new Held(1);
  held.tables = [Array.from({ length: Math.ceil(length / 32) }, (_, i) => id * 10 + i)];
  return new Sequence(options, id, flow, held);
}

/** The last `count` tokens of a sequence. */
function tail(sequence: Sequence, count: number, samples: readonly Sequence[] = [sequence]): Row {
  return { sequence, start: sequence.length - count, count, samples };
}

const batchOf = (rows: Row[], copies: Batch["copies"] = []): Batch => ({
  step: 0,
  rows,
  copies,
  preempted: 0,
  prompt: { plain: 0, scored: 0 },
});

/** Its seed tells whose row it is. */
const wanted = (sequence: Sequence): Wanted => ({
  sampling: { temperature: 1, seed: sequence.id },
});

describe("the inputs of a step", () => {
  test("are decoding rows by length, then chunks of prompts as they came", () => {
    const [chunk, long, other, short] = [
      sequenceOf(1, 40),
      sequenceOf(2, 100),
      sequenceOf(3, 5),
      sequenceOf(4, 33),
    ] as const;
    long.lengthen();
    const { inputs } = prepare(
      batchOf([tail(chunk, 3), tail(long, 1), tail(other, 2), tail(short, 1)]),
      wanted,
    );
    expect(inputs.rows).toEqual([
      { start: 32, count: 1, tables: [[40, 41]], isLong: false },
      { start: 99, count: 1, tables: [[20, 21, 22, 23]], isLong: true },
      { start: 37, count: 3, tables: [[10, 11]], isLong: false },
      { start: 3, count: 2, tables: [[30]], isLong: false },
    ]);
    expect([...inputs.tokens]).toEqual([4032, 2099, 1037, 1038, 1039, 3003, 3004]);
    const seeds = inputs.samples.map(({ at, row }) => `${at}: ${row.sampling.seed}`);
    expect(seeds).toEqual(["0: 4", "1: 2", "4: 1", "6: 3"]);
  });

  test("take the tokens of a chunk from its start, not from the end of the sequence", () => {
    const sequence = sequenceOf(1, 50);
    const { inputs } = prepare(batchOf([{ sequence, start: 8, count: 4, samples: [] }]), wanted);
    expect([...inputs.tokens]).toEqual([1008, 1009, 1010, 1011]);
    expect(inputs.rows).toEqual([{ start: 8, count: 4, tables: [[10, 11]], isLong: false }]);
    expect(inputs.samples).toEqual([]);
  });

  test("sample nothing inside a prompt, and let forks repeat a row's last position", () => {
    const [whole, part] = [sequenceOf(1, 4), sequenceOf(4, 20)];
    const forks = [sequenceOf(2, 4), sequenceOf(3, 4)];
    const { inputs } = prepare(
      batchOf([
        { sequence: part, start: 0, count: 5, samples: [] },
        tail(whole, 4, [whole, ...forks]),
      ]),
      wanted,
    );
    expect(inputs.tokens).toHaveLength(9);
    const seeds = inputs.samples.map(({ at, row }) => `${at}: ${row.sampling.seed}`);
    expect(seeds).toEqual(["8: 1", "8: 2", "8: 3"]);
  });

  test("carry each sample's own row, and know whose looks back", () => {
    const [first, fork] = [sequenceOf(1, 4), sequenceOf(2, 4)];
    const { inputs, lookingBack } = prepare(batchOf([tail(first, 4, [first, fork])]), (sequence) =>
      sequence === fork ? { ...wanted(fork), lookBack: () => ({}) } : wanted(sequence),
    );
    const rows = inputs.samples.map(({ row }) => row);
    expect(rows.map(({ sampling, looksBack }) => [sampling.seed, looksBack])).toEqual([
      [1, false],
      [2, true],
    ]);
    expect(lookingBack).toEqual([fork]);
  });

  test("are data: what another process gets of them is the same", () => {
    const sequence = sequenceOf(1, 40);
    const copies = [{ group: 0, from: 3, to: 9 }];
    const { inputs } = prepare(batchOf([tail(sequence, 3)], copies), () => ({
      ...wanted(sequence),
      lookBack: () => ({}),
      reading: { kind: "scores", top: 2 },
    }));
    expect(structuredClone(inputs)).toEqual(inputs);
  });

  test("say which sample of the step before a token is that is not known yet", () => {
    const [long, short, fresh] = [sequenceOf(1, 50), sequenceOf(2, 20), sequenceOf(3, 30)] as const;
    const all = new Map([long, short, fresh].map((each) => [each, wanted(each)]));
    const wantedOf = (sequence: Sequence) => all.get(sequence)!;
    prepare(batchOf([tail(long, 1), tail(short, 1)]), wantedOf);
    const next = (sequence: Sequence): Row => ({ ...tail(sequence, 1), start: sequence.length });
    const { inputs } = prepare(batchOf([next(long), tail(fresh, 1), next(short)]), wantedOf);
    expect(inputs.rows.map(({ start }) => start)).toEqual([20, 29, 50]);
    expect([...inputs.fed!]).toEqual([0, -1, 1]);
    expect(inputs.tokens[1]).toBe(3029);
    expect(prepare(batchOf([tail(fresh, 1)]), wantedOf).inputs.fed).toBeUndefined();
  });

  test("carry the copies of the batch", () => {
    const copies = [{ group: 0, from: 3, to: 9 }];
    const { inputs } = prepare(batchOf([tail(sequenceOf(1, 4), 1)], copies), wanted);
    expect(inputs.copies).toEqual(copies);
  });
});

test("what was drawn comes back in the order of the batch's samples, forks after their own", () => {
  const [prompt, fork, long, silent, short] = [
    sequenceOf(1, 6),
    sequenceOf(2, 6),
    sequenceOf(3, 90),
    sequenceOf(4, 30),
    sequenceOf(5, 7),
  ] as const;
  const batch = batchOf([
    tail(prompt, 6, [prompt, fork]),
    tail(long, 1),
    { sequence: silent, start: 0, count: 9, samples: [] },
    tail(short, 1),
  ]);
  const { inputs, restore } = prepare(batch, wanted);
  // What is drawn for a sequence is its id, so that the order can be told.
  const drawn = inputs.samples.map(({ row }) => ({ token: row.sampling.seed, logprob: -1 }));
  expect(drawn.map(({ token }) => token)).toEqual([5, 3, 1, 2]);
  const { sampled } = restore({ sampled: drawn, scored: [], sums: [] });
  expect(sampled).toEqual([1, 2, 3, 5].map((token) => ({ token, logprob: -1 })));
});
