// Arrays and the scopes that own them: what goes in comes out, and what is made is freed once.
import { describe, expect, test } from "bun:test";
import { MlxError } from "../../ffi/error.ts";
import {
  array,
  asyncEvaluate,
  evaluate,
  liveArrays,
  type MlxArray,
  operand,
} from "../../src/mlx/array.ts";
import { bytesOf, type Dtype, dtypes, type HostArray, toBfloat16 } from "../../src/mlx/dtype.ts";
import { activeMemory } from "../../src/mlx/memory.ts";
import { add, multiply, slice, swapAxes } from "../../src/mlx/ops.ts";
import { apart, hold, Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

describe("elements", () => {
  // Each dtype: numbers that it holds exactly, and the typed array that holds them on the host.
  const held: Record<Dtype, [number[], HostArray]> = {
    bool: [[0, 1, 1], Uint8Array.of(0, 1, 1)],
    uint8: [[0, 7, 255], Uint8Array.of(0, 7, 255)],
    uint16: [[0, 7, 65535], Uint16Array.of(0, 7, 65535)],
    uint32: [[0, 7, 4294967295], Uint32Array.of(0, 7, 4294967295)],
    uint64: [[0, 7, 2 ** 53], BigUint64Array.of(0n, 7n, 2n ** 53n)],
    int8: [[-128, -1, 127], Int8Array.of(-128, -1, 127)],
    int16: [[-32768, -1, 32767], Int16Array.of(-32768, -1, 32767)],
    int32: [[-2147483648, -1, 2147483647], Int32Array.of(-2147483648, -1, 2147483647)],
    int64: [[-(2 ** 53), -1, 2 ** 40], BigInt64Array.of(-(2n ** 53n), -1n, 2n ** 40n)],
    float16: [[-65504, 2 ** -24, Infinity], Float16Array.of(-65504, 2 ** -24, Infinity)],
    float32: [[-1.5, 2 ** -149, -Infinity], Float32Array.of(-1.5, 2 ** -149, -Infinity)],
    float64: [[-0.1, 5e-324, 1.7e308], Float64Array.of(-0.1, 5e-324, 1.7e308)],
    bfloat16: [[-1.5, 2 ** 127, Infinity], Uint16Array.of(0xbfc0, 0x7f00, 0x7f80)],
    complex64: [[-1.5, 0.25, 8], Float32Array.of(-1.5, 0, 0.25, 0, 8, 0)],
  };

  test.each(dtypes)("of %s come back as they went in", (dtype) => {
    using _ = new Scope();
    const [values, host] = held[dtype];
    const complex = dtype === "complex64";
    for (const x of [array(values, [3], dtype), array(host, [3], dtype)]) {
      expect(x.shape).toEqual([3]);
      expect(x.dtype).toBe(dtype);
      expect(x.size).toBe(3);
      expect(x.bytes).toBe(3 * bytesOf(dtype));
      expect(x.data()).toEqual(host);
      expect(x.numbers()).toEqual(complex ? Array.from(host, Number) : values);
    }
    for (const value of values) expect(array(value, [], dtype).numbers()[0]).toBe(value);
  });

  test("of a typed array get its own type, and numbers get float32", () => {
    using _ = new Scope();
    const found = Object.values(held).map(([, host]) => array(host).dtype);
    // What stands in for bool, bfloat16 and complex64 is plain bytes, words and floats.
    const standIns: Partial<Record<Dtype, Dtype>> = {
      bool: "uint8",
      bfloat16: "uint16",
      complex64: "float32",
    };
    expect(found).toEqual(dtypes.map((dtype) => standIns[dtype] ?? dtype));
    expect(array([1, 2]).dtype).toBe("float32");
    expect(array(1).dtype).toBe("float32");
  });

  test("of 64 bits are exact beyond what a number holds", () => {
    using _ = new Scope();
    const large = BigUint64Array.of(2n ** 64n - 1n, 2n ** 53n + 1n);
    expect(array(large).data()).toEqual(large);
  });

  test.each(["float16", "float32", "float64", "bfloat16"] as const)("of %s may be NaN", (dtype) => {
    using _ = new Scope();
    expect(array([1, NaN], [2], dtype).numbers()).toEqual([1, NaN]);
  });

  test("are the part that a typed array views, not its buffer", () => {
    using _ = new Scope();
    expect(array(Float32Array.of(1, 2, 3, 4).subarray(1, 3)).numbers()).toEqual([2, 3]);
  });

  test("are copied both ways", () => {
    using _ = new Scope();
    const source = Float32Array.of(1, 2);
    const x = array(source);
    source[0] = 9;
    x.data()[1] = 9;
    expect(x.numbers()).toEqual([1, 2]);
  });

  const read = (x: MlxArray) => ({ shape: x.shape, ndim: x.ndim, size: x.size, all: x.numbers() });

  test("may be one, none or of many axes", () => {
    using _ = new Scope();
    expect(read(array(5))).toEqual({ shape: [], ndim: 0, size: 1, all: [5] });
    expect(read(array([]))).toEqual({ shape: [0], ndim: 1, size: 0, all: [] });
    expect(read(array([], [2, 0, 3]))).toEqual({ shape: [2, 0, 3], ndim: 3, size: 0, all: [] });
    expect(read(array([1, 2, 3, 4], [1, 2, 1, 2, 1]))).toEqual({
      shape: [1, 2, 1, 2, 1],
      ndim: 5,
      size: 4,
      all: [1, 2, 3, 4],
    });
    expect(array([], [0], "bfloat16").data()).toEqual(new Uint16Array(0));
  });

  test("of views are read in row order", () => {
    using _ = new Scope();
    const x = array([1, 2, 3, 4, 5, 6], [2, 3]);
    expect(swapAxes(x, 0, 1).numbers()).toEqual([1, 4, 2, 5, 3, 6]);
    expect(slice(x, 1, 1).numbers()).toEqual([2, 3, 5, 6]);
    expect(slice(x, 0, 1).numbers()).toEqual([4, 5, 6]);
    expect(slice(swapAxes(x, 0, 1), 0, 1, 2).numbers()).toEqual([2, 5]);
    const halves = array([1, 2, 3, 4, 5, 6], [2, 3], "bfloat16");
    expect(swapAxes(halves, 0, 1).numbers()).toEqual([1, 4, 2, 5, 3, 6]);
  });

  test.each<[string, () => MlxArray]>([
    ["fewer than the shape", () => array([1, 2, 3], [2, 2])],
    ["more than the shape", () => array([1, 2, 3], [2])],
    ["a list for a scalar", () => array([1, 2], [])],
    ["of another width than the dtype", () => array(Float32Array.of(1, 2), [2], "float64")],
    ["halves of complex pairs", () => array(Float32Array.of(1, 2), [2], "complex64")],
    ["of a negative dimension", () => array([1], [-1])],
    ["of two negative dimensions", () => array([1], [-1, -1])],
    ["of a fractional dimension", () => array([1], [0.5, 2])],
    ["of a dimension that is NaN", () => array([1], [NaN])],
  ])("are refused when they are %s", (_name, make) => {
    using _ = new Scope();
    expect(make).toThrow(MlxError);
    expect(make).toThrow(/^array: shape \(.*\) of .* takes .* bytes, the data has \d+$/);
  });
});

describe("bfloat16", () => {
  /** Nearest with 8 significant bits, ties to even, worked out with numbers and not with bits. */
  function nearest(value: number): number {
    if (value === 0 || !Number.isFinite(value)) return value;
    const exponent = Math.max(Math.floor(Math.log2(Math.abs(value))), -126);
    const step = 2 ** (exponent - 7);
    const steps = value / step;
    const below = Math.floor(steps);
    const rest = steps - below;
    const up = rest > 0.5 || (rest === 0.5 && below % 2 !== 0);
    const rounded = (below + (up ? 1 : 0)) * step;
    return Math.abs(rounded) >= 2 ** 128 ? Math.sign(value) * Infinity : rounded;
  }

  test("rounds to nearest, ties to even", () => {
    using _ = new Scope();
    const [in1, in2] = [1 + 2 ** -8, 1 + 3 * 2 ** -8];
    const table: [number, number][] = [
      [1, 1],
      [in1, 1],
      [in1 + 2 ** -23, 1 + 2 ** -7],
      [in2, 1 + 2 ** -6],
      [in2 - 2 ** -23, 1 + 2 ** -7],
      [-in1, -1],
      [-in2, -1 - 2 ** -6],
      [3.4028234663852886e38, Infinity],
      [-3.4028234663852886e38, -Infinity],
      [2 ** -133, 2 ** -133],
      [2 ** -134, 0],
      [3 * 2 ** -134, 2 ** -132],
      [-0, -0],
      [Infinity, Infinity],
      [-Infinity, -Infinity],
      [NaN, NaN],
    ];
    const values = table.map(([value]) => value);
    const expected = table.map(([, rounded]) => rounded);
    expect(values.map(nearest)).toEqual(expected);
    expect(array(values, undefined, "bfloat16").numbers()).toEqual(expected);
  });

  test("rounds any float32 as the reference does", () => {
    using _ = new Scope();
    // Multiples of an odd number visit all exponents and both signs.
    const words = Uint32Array.from({ length: 20000 }, (_, i) => Math.imul(i, 2654435761));
    const values = [...new Float32Array(words.buffer)];
    expect(array(values, undefined, "bfloat16").numbers()).toEqual(values.map(nearest));
  });

  test("keeps NaN a quiet NaN of its sign", () => {
    // The first has payload bits only where bfloat16 has none.
    const words = Uint32Array.of(0x7f80_0001, 0x7fc0_0000, 0xff80_0001);
    const bits = new Uint16Array(3);
    toBfloat16(new Float32Array(words.buffer), bits);
    expect([...bits]).toEqual([0x7fc0, 0x7fc0, 0xffc0]);
  });
});

describe("a number beside an array", () => {
  test("takes the array's type where it can", () => {
    using _ = new Scope();
    const type = (dtype: Dtype, value: number) => operand(value, array([1], [1], dtype)).dtype;
    for (const dtype of dtypes) expect(type(dtype, 1)).toBe(dtype === "bool" ? "int32" : dtype);
    for (const dtype of ["bfloat16", "float16", "float64", "complex64"] as const)
      expect(type(dtype, 0.5)).toBe(dtype);
    for (const dtype of ["bool", "uint8", "int32", "int64"] as const)
      expect([type(dtype, 0.5), type(dtype, Infinity)]).toEqual(["float32", "float32"]);
  });

  test("is left alone when it is an array", () => {
    using _ = new Scope();
    const x = array([1], [1], "int8");
    expect(operand(x, array(1))).toBe(x);
  });
});

describe("memory", () => {
  test("is MLX's own: what is written there, a later operation reads", () => {
    using _ = new Scope();
    const x = array([1, 2, 3]);
    new Float32Array(x.memory())[1] = 20;
    expect(add(x, 1).numbers()).toEqual([2, 21, 4]);
    const computed = multiply(x, 2);
    const floats = new Float32Array(computed.memory());
    expect([...floats]).toEqual([2, 40, 6]);
    floats[2] = -1;
    expect(computed.numbers()).toEqual([2, 40, -1]);
  });

  test("starts at the view's first element", () => {
    using _ = new Scope();
    const row = slice(array([1, 2, 3, 4, 5, 6], [2, 3]), 0, 1);
    expect([...new Float32Array(row.memory())]).toEqual([4, 5, 6]);
  });

  test("of a strided view is refused", () => {
    using _ = new Scope();
    const x = array([1, 2, 3, 4, 5, 6], [2, 3]);
    const refusal = new MlxError("memory", "the array is a strided view of another");
    for (const strided of [swapAxes(x, 0, 1), slice(x, 1, 0, 2)])
      expect(() => strided.memory()).toThrow(refusal);
  });

  test("of an empty array is empty", () => {
    using _ = new Scope();
    expect(array([], [3, 0]).memory().byteLength).toBe(0);
  });
});

describe("evaluation", () => {
  // An array takes memory when it is evaluated.
  const MIB = 2 ** 20;
  const input = () => array(new Float32Array(MIB));

  test("is put off until it is asked for", () => {
    using _ = new Scope();
    const x = input();
    const before = activeMemory();
    const [y, z] = [add(x, 1), multiply(x, 3)];
    expect(activeMemory()).toBeLessThan(before + MIB);
    y.evaluate();
    expect(activeMemory()).toBeWithin(before + 4 * MIB, before + 5 * MIB);
    z.evaluate();
    expect(activeMemory()).toBeWithin(before + 8 * MIB, before + 9 * MIB);
  });

  test("takes several arrays together, or none", () => {
    using _ = new Scope();
    const x = input();
    const before = activeMemory();
    evaluate(add(x, 1), multiply(x, 3));
    expect(activeMemory()).toBeWithin(before + 8 * MIB, before + 9 * MIB);
    evaluate();
    asyncEvaluate();
  });

  test("started asynchronously, runs before a reader asks", () => {
    using _ = new Scope();
    const x = input();
    const before = activeMemory();
    const y = add(x, 1);
    asyncEvaluate(y);
    for (let ms = 0; ms < 4000 && activeMemory() < before + 4 * MIB; ms++) Bun.sleepSync(1);
    expect(activeMemory()).toBeGreaterThanOrEqual(before + 4 * MIB);
    expect(y.numbers()[0]).toBe(1);
  });
});

describe("a freed array", () => {
  function freed(): MlxArray {
    using _ = new Scope();
    return array([1, 2]);
  }

  test.each<[string, (x: MlxArray) => unknown]>([
    ["shape", (x) => x.shape],
    ["dtype", (x) => x.dtype],
    ["size", (x) => x.size],
    ["bytes", (x) => x.bytes],
    ["memory", (x) => x.memory()],
    ["data", (x) => x.data()],
    ["numbers", (x) => x.numbers()],
    ["evaluate", (x) => x.evaluate()],
    ["evaluate, in a list", (x) => evaluate(x)],
    ["asyncEvaluate", (x) => asyncEvaluate(x)],
    ["free, a second time", (x) => x.free()],
  ])("refuses %s", (_name, use) => {
    const before = liveArrays();
    expect(() => use(freed())).toThrow(new MlxError("array", "used after it was freed"));
    expect(liveArrays()).toBe(before);
  });
});

describe("a scope", () => {
  const alive = (x: MlxArray) => x.handle !== null;

  test("frees what was made in it", () => {
    const before = liveArrays();
    let made: MlxArray[];
    {
      using _ = new Scope();
      const x = array([1, 2]);
      made = [x, add(x, 1), slice(x, 0, 1)];
      // The number 1 is an array of its own.
      expect(liveArrays()).toBe(before + 4);
    }
    expect(made.map(alive)).toEqual([false, false, false]);
    expect(liveArrays()).toBe(before);
  });

  test("owns nothing of what is done apart from it, and is open again after an error there", () => {
    using scope = new Scope();
    let own: MlxArray | undefined;
    const fail = () => {
      using inner = new Scope();
      own = inner.keep(array([1, 2]));
      throw new Error("apart");
    };
    expect(() => apart(fail)).toThrow("apart");
    expect(own!.scope).toBeUndefined();
    own!.free();
    expect(array([3]).scope).toBe(scope);
  });

  test("hands what it keeps to the scope around it", () => {
    const before = liveArrays();
    let kept: MlxArray;
    {
      using _outer = new Scope();
      {
        using inner = new Scope();
        kept = inner.keep(add(array([1, 2]), 1));
      }
      expect(liveArrays()).toBe(before + 1);
      expect(kept.numbers()).toEqual([2, 3]);
    }
    expect(alive(kept)).toBe(false);
    expect(liveArrays()).toBe(before);
  });

  test("keeps several, and passes them on through scope after scope", () => {
    using _outer = new Scope();
    const inside = (): MlxArray[] => {
      using middle = new Scope();
      const deeper = (): readonly MlxArray[] => {
        using inner = new Scope();
        return inner.keep([array(1), array(2)]);
      };
      return [...middle.keep(deeper())];
    };
    expect(inside().map((x) => x.numbers())).toEqual([[1], [2]]);
  });

  test("leaves alone what another scope owns", () => {
    const before = liveArrays();
    {
      using outer = new Scope();
      const x = array(1);
      {
        using inner = new Scope();
        expect(inner.keep(x)).toBe(x);
      }
      expect(x.scope).toBe(outer);
      expect(x.numbers()).toEqual([1]);
    }
    expect(liveArrays()).toBe(before);
  });

  test("at the outermost hands what it keeps to the caller for good", () => {
    const before = liveArrays();
    let kept: MlxArray;
    {
      using scope = new Scope();
      kept = scope.keep(array(3));
    }
    expect(liveArrays()).toBe(before + 1);
    expect(alive(kept)).toBe(true);
    expect(kept.scope).toBeUndefined();
    kept.free();
    expect(() => kept.free()).toThrow(new MlxError("array", "used after it was freed"));
    expect(liveArrays()).toBe(before);
  });

  test("does not free what is held, however deep it was made", () => {
    const before = liveArrays();
    let one: MlxArray;
    let many: MlxArray[];
    {
      using _outer = new Scope();
      using _inner = new Scope();
      one = hold(array(1));
      many = hold([array(2), array(3)]);
    }
    expect([one, ...many].map(alive)).toEqual([true, true, true]);
    expect(liveArrays()).toBe(before + 3);
    for (const x of [one, ...many]) x.free();
    expect(liveArrays()).toBe(before);
  });

  test("must close before the scope around it", () => {
    const outer = new Scope();
    const inner = new Scope();
    const x = array(1);
    expect(() => outer[Symbol.dispose]()).toThrow("reverse order");
    expect(alive(x)).toBe(true);
    inner[Symbol.dispose]();
    outer[Symbol.dispose]();
    expect(() => outer[Symbol.dispose]()).toThrow("reverse order");
  });

  test("that an exception leaves frees all the same", () => {
    const before = liveArrays();
    const build = () => {
      using _ = new Scope();
      const x = array([1, 2]);
      add(x, array([1, 2, 3]));
    };
    expect(build).toThrow(MlxError);
    expect(build).toThrow("cannot be broadcast");
    expect(liveArrays()).toBe(before);
  });

  test("must be open to make an array", () => {
    const before = liveArrays();
    expect(() => array(1)).toThrow("outside any scope");
    // A refused array is nobody's: it may not be counted, nor stay allocated.
    expect(liveArrays()).toBe(before);
  });
});

test("a number that an integer type cannot hold is refused, not wrapped", () => {
  using _ = new Scope();
  for (const [value, dtype] of [
    [300, "uint8"],
    [-1, "uint32"],
    [1.5, "int32"],
  ] as const) {
    expect(() => array([0, value], [2], dtype)).toThrow(`array: ${value} does not fit ${dtype}`);
  }
});

test("an array freed inside its scope is not freed again when the scope closes", () => {
  using _ = new Scope();
  {
    using _inner = new Scope();
    array([1]).free();
    array([2]);
  }
});
