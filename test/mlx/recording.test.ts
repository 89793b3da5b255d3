// Functions that are recorded as CUDA graphs. What needs a GPU is skipped without one.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import {
  add,
  argsort,
  astype,
  matmul,
  max,
  multiply,
  slice,
  sum,
  tanh,
  zeros,
} from "../../src/mlx/ops.ts";
import { key, normal } from "../../src/mlx/random.ts";
import { pinned, Recorded } from "../../src/mlx/recording.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

const hasCuda = backend() === "cuda";

const double = (size: number) =>
  new Recorded(
    ([x]) => [multiply(x!, 2)],
    () => [array(new Float32Array(size))],
  );

test.skipIf(hasCuda)("what cannot be recorded says why, and is called as before", () => {
  using _ = new Scope();
  const recorded = double(1);
  for (const n of [1, 2, 3]) expect(recorded.call(array([n]))[0]!.numbers()).toEqual([2 * n]);
  expect(recorded.isRecorded).toBe(false);
  expect(recorded.failure?.message).toContain("serve_recording_new: ");
  expect(() => pinned(Float32Array.of(1))).toThrow("CUDA");
  recorded.free();
});

describe("is recorded once", () => {
  /** The calls that record it. `kinds` has a letter for each call: "b" where streams wait for it, "a" where none does. */
  const recordedAt = (kinds: string) => {
    using _ = new Scope();
    const found: number[] = [];
    let calls = 0;
    const recorded = new Recorded(
      ([x]) => [multiply(x!, 2)],
      () => {
        found.push(calls);
        return [array([0])];
      },
    );
    for (const kind of kinds) {
      calls += 1;
      const call = kind === "b" ? "callBeside" : "call";
      expect(recorded[call](array([calls]))[0]!.numbers()).toEqual([2 * calls]);
    }
    recorded.free();
    return found;
  };

  test("at its second call where no stream waits, whoever waited for the first", () => {
    expect(recordedAt("aaaa")).toEqual([2]);
    expect(recordedAt("baaa")).toEqual([2]);
    expect(recordedAt("abbba".padEnd(40, "b"))).toEqual([5]);
  });

  test("beside streams when that pays, by calls of both kinds", () => {
    expect(recordedAt("b".repeat(15))).toEqual([]);
    expect(recordedAt("b".repeat(40))).toEqual([16]);
    expect(recordedAt("a".padEnd(40, "b"))).toEqual([16]);
  });
});

describe.skipIf(!hasCuda)("on CUDA", () => {
  const [IN, OUT] = [3072, 1024];

  /** Products with cuBLAS, which needs memory of its own for some, and more behind them. */
  function network(rows: number) {
    const weights = [1, 2, 3].map((seed) => multiply(normal(key(seed), [IN, OUT]), IN ** -0.5));
    const back = multiply(normal(key(4), [OUT, IN]), OUT ** -0.5);
    const bfloat = (x: MlxArray) => astype(x, "bfloat16");
    const [w, v] = [weights.map(bfloat), bfloat(back)];
    evaluate(...w, v);
    const run = (x: MlxArray) => {
      let h = x;
      for (const each of w) h = add(h, matmul(tanh(matmul(h, each)), v));
      return [h, astype(max(h, -1), "float32"), astype(sum(h, -1), "float32")];
    };
    const input = (seed: number) => bfloat(normal(key(100 + seed), [rows, IN]));
    const recorded = new Recorded(
      ([x]) => run(x!),
      () => [input(0)],
    );
    return { recorded, run, input };
  }

  /** Both small outputs, and a sum over the large one. */
  function read([all, most, sums]: readonly MlxArray[]): number[] {
    const total = sum(astype(all!, "float32"), -1);
    evaluate(total, most!, sums!);
    return [total, most!, sums!].flatMap((x) => x.numbers());
  }

  test("other inputs give what the function gives", () => {
    using _ = new Scope();
    const { recorded, run, input } = network(128);
    for (let i = 0; i < 6; i++) expect(read(recorded.call(input(i)))).toEqual(read(run(input(i))));
    expect(read(recorded.callBeside(input(6)))).toEqual(read(run(input(6))));
    expect(recorded.failure).toBeUndefined();
    expect(recorded.isRecorded).toBe(true);
    recorded.free();
  });

  test("its memory is nobody else's", () => {
    using _ = new Scope();
    const { recorded, input } = network(64);
    const expected = [1, 2].map(() => read(recorded.call(input(1))))[1]!;
    const sizes = [64 * IN, 64 * OUT, 64, 1 << 20, 4 << 20];
    const others = sizes.flatMap((size) =>
      Array.from({ length: 20 }, (_, i) => add(zeros([size]), i)),
    );
    evaluate(...others);
    for (let i = 0; i < 3; i++) expect(read(recorded.call(input(1)))).toEqual(expected);
    const means = others.map((x) => sum(multiply(x, 1 / x.size)));
    evaluate(...means);
    means.forEach((mean, i) => {
      expect(mean.numbers()[0]).toBeCloseTo(i % 20, 3);
    });
    recorded.free();
  });

  test("recordings of several sizes are played in turn", () => {
    using _ = new Scope();
    const all = [1, 5, 16, 40, 128].map(network);
    const expected = all.map(({ run, input }) => read(run(input(0))));
    for (let round = 0; round < 4; round++) {
      all.forEach(({ recorded, input }, i) => {
        expect(read(recorded.call(input(0)))).toEqual(expected[i]!);
      });
    }
    expect(all.map(({ recorded }) => recorded.isRecorded)).toEqual(all.map(() => true));
    for (const { recorded } of all) recorded.free();
  });

  test("what it cannot keep the memory of is called as before", () => {
    using _ = new Scope();
    const x = normal(key(7), [3, 100_000]);
    const recorded = new Recorded(
      ([x]) => [multiply(slice(argsort(x!), 1, 0, 1000), 1)],
      () => [x],
    );
    const first = recorded.call(x)[0]!.numbers();
    for (let i = 0; i < 3; i++) expect(recorded.call(x)[0]!.numbers()).toEqual(first);
    recorded.free();
  });

  test("what cannot be played is called as before", () => {
    using _ = new Scope();
    const recorded = double(2);
    for (let i = 0; i < 2; i++) recorded.call(pinned(Float32Array.of(1, 2)));
    expect(recorded.isRecorded).toBe(true);
    expect(recorded.call(pinned(Float32Array.of(4)))[0]!.numbers()).toEqual([8]);
    expect(recorded.failure?.message).toContain("another shape");
    recorded.free();
  });

  test("arrays of any number, size and place are given and taken", () => {
    using _ = new Scope();
    const LARGE = 100_000;
    const lengths = [9, 10, 11, 12, 15, 16, 17, 20, 31, 32, 64, 100, 4096, 4097, 65_536, LARGE];
    /** Of bytes, one that begins behind others, and numbers of 4 bytes. */
    const inputs = (first: number) => {
      const values = lengths.map((length) =>
        Uint8Array.from({ length }, (_, i) => (first + 7 * i) % 200),
      );
      const bytes = values.map((each) => pinned(each));
      const behind = slice(pinned(Uint8Array.from({ length: 40 }, (_, i) => first + i)), 0, 3, 20);
      const words = [3, 6, 1000, LARGE / 4].map((length) =>
        pinned(Float32Array.from({ length }, (_, i) => first + i)),
      );
      return [...bytes, behind, ...words];
    };
    const recorded = new Recorded(
      (given) => given.map((x) => add(x, 1)),
      () => inputs(0),
    );
    for (const first of [1, 2, 3, 4]) {
      const given = inputs(first);
      const expected = given.map((x) => x.numbers().map((value) => value + 1));
      // What is large is only there for operations that are evaluated before the next call.
      const taken = recorded.call(...given).map((x) => (x.bytes > 65_536 ? multiply(x, 1) : x));
      evaluate(...taken);
      expect(taken.map((x) => x.numbers())).toEqual(expected);
    }
    expect(recorded.failure).toBeUndefined();
    expect(recorded.isRecorded).toBe(true);
    recorded.free();
  });

  test("numbers that are staged are there for the device and for us", () => {
    using _ = new Scope();
    const x = pinned(Float32Array.of(1, 2, 3));
    expect(multiply(x, 2).numbers()).toEqual([2, 4, 6]);
    expect(x.numbers()).toEqual([1, 2, 3]);
  });
});
