// Operations that are kept and run as one, beside the same operations one by one.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import * as cpu from "../../src/mlx/cpu.ts";
import { activeMemory } from "../../src/mlx/memory.ts";
import { add, flatten, quantize, subtract, take } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { Sequenced } from "../../src/mlx/sequence.ts";
import { useMlx } from "../support/mlx.ts";
import { makeRandom } from "../support/random.ts";

useMlx();

const DEPTH = 64;
const COLUMNS = 300;
const how = { mode: "affine", bits: 4, groupSize: 32 } as const;

describe.skipIf(backend() !== "cpu")("operations that are kept", () => {
  const random = makeRandom(11);
  const numbers = (count: number) =>
    Float32Array.from({ length: count }, () => random.below(2001) / 1000 - 1);

  /** Some layers of products, as a step of a model has them: tokens (T) -> the best (T), all (T, COLUMNS) */
  function model() {
    const square = () => quantize(array(numbers(DEPTH * DEPTH), [DEPTH, DEPTH]), how);
    const layers = Array.from({ length: 12 }, square);
    const table = array(numbers(COLUMNS * DEPTH), [COLUMNS, DEPTH]);
    const head = quantize(table, how);
    const norm = { weight: array(numbers(DEPTH)), eps: 1e-5 };
    const all = [...layers, head];
    const arrays = all.flatMap(({ weight, scales, biases }) => [weight, scales, biases!]);
    evaluate(...arrays, table, norm.weight);
    return (tokens: MlxArray): MlxArray[] => {
      let x = cpu.lookup(tokens, { weight: table });
      // Both of the last two are needed by each.
      let before = x;
      for (const layer of layers) {
        [before, x] = [x, cpu.packedProduct(x, layer, how, { norm, residual: before })];
      }
      const all = cpu.packedProduct(cpu.rmsNorm(x, norm.weight, norm.eps), head, how);
      const { indices, highest } = cpu.best(all);
      return [indices, highest, all];
    };
  }

  const tokensOf = (count: number) =>
    array(Uint32Array.from({ length: count }, () => random.below(COLUMNS)));

  const inputs: Record<string, (tokens: MlxArray) => MlxArray> = {
    "are there": (tokens) => tokens,
    "are not computed yet": (tokens) => {
      const one = array(Uint32Array.of(1));
      return subtract(add(tokens, one), one);
    },
  };
  test.each(Object.entries(inputs))(
    "make what they make one by one, for each call's inputs, that %s",
    (_, asGiven) => {
      using _scope = new Scope();
      const build = model();
      const kept = new Sequenced(([tokens]) => build(tokens!));
      for (let call = 1; call <= 6; call++) {
        const tokens = tokensOf(5);
        const found = kept.call(asGiven(tokens)).map((each) => each.numbers());
        expect(kept.isKept).toBe(call > 1);
        expect(found).toEqual(build(tokens).map((each) => each.numbers()));
      }
      kept.free();
    },
  );

  test("take inputs that are computed just before, and are read later", () => {
    using _ = new Scope();
    const build = model();
    const kept = new Sequenced(([tokens]) => build(tokens!));
    let tokens = tokensOf(3);
    let expected = tokens;
    const found: MlxArray[] = [];
    const wanted: MlxArray[] = [];
    for (let call = 0; call < 5; call++) {
      [tokens] = kept.call(tokens) as [MlxArray];
      [expected] = build(expected) as [MlxArray];
      found.push(tokens);
      wanted.push(expected);
    }
    // Small outputs are nobody else's.
    const read = (arrays: MlxArray[]) => arrays.map((each) => each.numbers());
    expect(read(found)).toEqual(read(wanted));
    kept.free();
  });

  test("of several sizes in turn, which share their memory, large outputs until the next", () => {
    using _ = new Scope();
    const build = model();
    const sizes = [1, 7, 64, 100];
    const all = sizes.map(() => new Sequenced(([tokens]) => build(tokens!)));
    for (const [i, each] of all.entries()) {
      for (let call = 0; call < 2; call++) evaluate(...each.call(tokensOf(sizes[i]!)));
    }
    const before = activeMemory();
    for (let round = 0; round < 3; round++) {
      for (const [i, each] of all.entries()) {
        using _ = new Scope();
        const tokens = tokensOf(sizes[i]!);
        const [, highest, rows] = each.call(tokens) as [MlxArray, MlxArray, MlxArray];
        // What uses a large output is evaluated before the next call.
        const whole = add(rows, 0);
        evaluate(whole, highest);
        const [, expected, expectedRows] = build(tokens) as [MlxArray, MlxArray, MlxArray];
        expect(highest.numbers()).toEqual(expected.numbers());
        expect(whole.numbers()).toEqual(expectedRows.numbers());
      }
    }
    expect(activeMemory()).toBeLessThanOrEqual(before);
    // Less than what the largest makes, layer by layer, and never what all of them make.
    const layered = 100 * DEPTH * 4 * 12;
    for (const each of all) each.free();
    const freed = before - activeMemory();
    expect(freed).toBeGreaterThan(100 * COLUMNS * 4);
    expect(freed).toBeLessThan(100 * COLUMNS * 4 + layered);
  });

  test("with one of MLX's own among them they are not kept, and right all the same", () => {
    using _ = new Scope();
    const build = model();
    const kept = new Sequenced(([tokens]) => {
      const [indices] = build(tokens!);
      return [add(indices!, 1)];
    });
    for (let call = 0; call < 3; call++) {
      const tokens = tokensOf(4);
      const expected = build(tokens)[0]!
        .numbers()
        .map((index) => index + 1);
      expect(kept.call(tokens)[0]!.numbers()).toEqual(expected);
    }
    expect(kept.isKept).toBeFalse();
    kept.free();
  });

  test("refuse inputs of other shapes and types", () => {
    using _ = new Scope();
    const build = model();
    const kept = new Sequenced(([tokens]) => build(tokens!));
    for (let call = 0; call < 2; call++) evaluate(...kept.call(tokensOf(4)));
    expect(() => kept.call(tokensOf(5))).toThrow("an input does not fit its place");
    expect(() => kept.call(array(new Int32Array(4)))).toThrow("an input does not fit its place");
    expect(() => kept.call()).toThrow("there are not as many inputs as places");
    kept.free();
  });
});

describe.skipIf(backend() !== "cpu")("rows of a table", () => {
  test("that is quantized or not are those that MLX finds", () => {
    using _ = new Scope();
    const random = makeRandom(12);
    const values = Float32Array.from({ length: 40 * 128 }, () => random.below(2001) / 1000 - 1);
    const table = array(values, [40, 128]);
    const tokens = array(Uint32Array.from([39, 0, 7, 7, 20]));
    expect(cpu.lookup(tokens, { weight: table }).numbers()).toEqual(take(table, tokens).numbers());
  });

  test("refuse indices and tables of other kinds", () => {
    using _ = new Scope();
    const table = array(new Float32Array(40 * 128), [40, 128]);
    const tokens = array(new Uint32Array(2));
    expect(() => cpu.lookup(array(new Int32Array(2)), { weight: table })).toThrow("uint32");
    expect(() => cpu.lookup(tokens, { weight: flatten(table) })).toThrow("no matrix");
    expect(() => cpu.lookup(tokens, { weight: tokens })).toThrow("no matrix");
    // Beyond the table there is nothing to read.
    expect(cpu.lookup(array(Uint32Array.of(2 ** 31)), { weight: table }).shape).toEqual([1, 128]);
  });
});
