// The frequencies were computed from the formulas of transformers' modeling_rope_utils, in Python.
import { describe, expect, test } from "bun:test";
import { LoadError } from "../../../src/files/load-error.ts";
import { array } from "../../../src/mlx/array.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { BaseConfig, parseConfig, type RopeScaling } from "../../../src/model/checkpoint/config.ts";
import {
  backwards,
  makeRope,
  ofAnyLength,
  originalLength,
  type Rope,
  type RopeOptions,
  ropeOptions,
  rotated,
} from "../../../src/model/contract/rope.ts";
import { Weights } from "../../../src/model/weights/weights.ts";
import { deviceOf } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";

useMlx();

/** By how much each pair is turned from one position to the next, and what it is multiplied by; of long sequences too. */
function turnsOf(options: RopeOptions) {
  const weights = emptyWeights();
  const turns = ({ wavelengths, magnitude }: Pick<Rope, "wavelengths" | "magnitude">) => {
    return { angles: wavelengths.numbers().map((wave) => 1 / wave), magnitude };
  };
  try {
    const { dims, long, ...rope } = makeRope(weights, options);
    expect(dims).toBe(options.dims);
    return { ...turns(rope), long: long && { beyond: long.beyond, ...turns(long) } };
  } finally {
    weights.arrays.free();
  }
}

function emptyWeights(): Weights {
  const nothing = { path: "", format: "safetensors", config: {}, tensors: new Map() } as const;
  return new Weights({ ...nothing, close() {} }, { device: deviceOf("cpu") });
}

/** Relative errors of these angles, by the index of their pair. */
function worstError(angles: number[], expected: Record<number, number>): number {
  const errors = Object.entries(expected).map(([i, angle]) => angles[Number(i)]! / angle - 1);
  return Math.max(...errors.map(Math.abs));
}

test("heads rotate by the positions of their tokens, and what rotates is multiplied", () => {
  const weights = emptyWeights();
  const rope = { ...makeRope(weights, { dims: 2, base: 10_000 }), magnitude: 2 };
  const numbers = (turned: typeof rope) => {
    using _ = new Scope();
    // Two tokens of one head with three features, of which two rotate.
    const x = array([1, 0, 5, 1, 0, 5], [2, 1, 3]);
    return rotated(x, turned, array(Int32Array.of(0, 1))).numbers();
  };
  const [cos, sin] = [2 * Math.cos(1), 2 * Math.sin(1)];
  const near = (found: number[], expected: number[]) =>
    expect(Math.max(...found.map((x, i) => Math.abs(x - expected[i]!)))).toBeLessThan(1e-6);
  near(numbers(rope), [2, 0, 5, cos, sin, 5]);
  near(numbers(backwards(weights, rope)), [2, 0, 5, cos, -sin, 5]);
  weights.arrays.free();
});

describe("positions rotate by the frequencies of", () => {
  test("default, base ^ (-2i / dims)", () => {
    const { angles, magnitude } = turnsOf({ dims: 8, base: 10_000 });
    expect(worstError(angles, { 0: 1, 1: 0.1, 2: 0.01, 3: 0.001 })).toBeLessThan(1e-5);
    expect(magnitude).toBeCloseTo(1, 5);
  });

  test.each(["mrope", "dynamic"])("%s, as default where texts are and sequences end", (type) => {
    const options = { dims: 8, base: 10_000 };
    expect(turnsOf({ ...options, scaling: { type, factor: 2 } })).toEqual(turnsOf(options));
  });

  test("linear, all slower by the factor", () => {
    const scaling = { type: "linear", factor: 4 };
    const { angles } = turnsOf({ dims: 8, base: 10_000, scaling });
    expect(worstError(angles, { 0: 0.25, 1: 0.025, 2: 0.0025, 3: 0.00025 })).toBeLessThan(1e-5);
  });

  test("proportional, of the first features only, as slow as they are among all", () => {
    const scaling = { rope_type: "proportional", partial_rotary_factor: 0.5, factor: 2 };
    const { angles } = turnsOf({ dims: 8, base: 10_000, scaling });
    expect(worstError(angles.slice(0, 2), { 0: 0.5, 1: 0.05 })).toBeLessThan(1e-5);
    // Not by a number that float32 adds to 1, at any position.
    for (const angle of angles.slice(2)) expect(1e7 * angle).toBeLessThan(1e-20);
  });

  test("llama3, as in Llama 3.1", () => {
    const scaling = {
      rope_type: "llama3",
      factor: 8,
      low_freq_factor: 1,
      high_freq_factor: 4,
      original_max_position_embeddings: 8192,
    };
    const { angles, magnitude } = turnsOf({ dims: 128, base: 500_000, scaling });
    const expected = {
      0: 1,
      10: 0.128687,
      28: 0.00321145,
      29: 0.00216657,
      30: 0.00137189,
      32: 0.000524846,
      34: 0.000178508,
      35: 9.55621e-5,
      40: 3.4281e-5,
      63: 3.06893e-7,
    };
    expect(worstError(angles, expected)).toBeLessThan(1e-5);
    expect(magnitude).toBeCloseTo(1, 5);
  });

  test("yarn, as in Qwen 3 with a longer context", () => {
    const scaling = { type: "yarn", factor: 4, original_max_position_embeddings: 32_768 };
    const { angles, magnitude } = turnsOf({ dims: 128, base: 1_000_000, scaling });
    const expected = {
      0: 1,
      20: 0.0133352,
      24: 0.00537532,
      30: 0.00106436,
      36: 0.000179841,
      39: 6.49039e-5,
      40: 4.4457e-5,
      41: 3.58253e-5,
      63: 3.10234e-7,
    };
    expect(worstError(angles, expected)).toBeLessThan(1e-5);
    expect(magnitude).toBeCloseTo(1.138629, 5);
  });

  test("yarn whose ramp is not cut to whole features, as in gpt-oss", () => {
    const scaling = {
      rope_type: "yarn",
      factor: 32,
      beta_fast: 32,
      beta_slow: 1,
      original_max_position_embeddings: 4096,
      truncate: false,
    };
    const options = { dims: 64, base: 150_000, scaling };
    const expected = {
      0: 1,
      5: 0.155323,
      8: 0.0508133,
      9: 0.0317057,
      12: 0.00679496,
      16: 0.000456484,
      17: 0.000129319,
      18: 3.83088e-5,
      31: 3.02351e-7,
    };
    const { angles, magnitude } = turnsOf(options);
    expect(worstError(angles, expected)).toBeLessThan(1e-5);
    expect(magnitude).toBeCloseTo(1.346574, 5);
    const cut = turnsOf({ ...options, scaling: { ...scaling, truncate: true } });
    const expectedCut = { 8: 0.0508133, 9: 0.0316208, 12: 0.00701571, 16: 0.000580948 };
    expect(worstError(cut.angles, expectedCut)).toBeLessThan(1e-5);
  });

  test("yarn with a magnitude of its own", () => {
    const scaling = { type: "yarn", factor: 40, mscale: 0.7, mscale_all_dim: 1 };
    const { magnitude } = turnsOf({ dims: 64, base: 10_000, scaling });
    expect(magnitude).toBeCloseTo(0.919156, 5);
  });

  describe("longrope,", () => {
    const scaling = {
      type: "longrope",
      short_factor: [1, 1.1, 1.2, 1.3, 1.4, 1.5],
      long_factor: [1, 1.5, 2, 3, 5, 8],
      original_max_position_embeddings: 4096,
    };
    const options = { dims: 12, base: 10_000, maxPositions: 131_072 };
    const short = [1, 0.195858, 0.0386799, 0.00769231, 0.00153888, 0.000309439];
    const long = [1, 0.143629, 0.0232079, 0.00333333, 0.000430887, 5.80199e-5];

    test.each(["longrope", "su"])("as %s: short factors, and long ones beyond a length", (type) => {
      const found = turnsOf({ ...options, scaling: { ...scaling, type } });
      expect(worstError(found.angles, { ...short })).toBeLessThan(1e-5);
      expect(worstError(found.long!.angles, { ...long })).toBeLessThan(1e-5);
      expect(found.long!.beyond).toBe(4096);
      for (const { magnitude } of [found, found.long!]) expect(magnitude).toBeCloseTo(1.190238, 5);
    });

    test.each([
      [{ factor: 4 }, 1.080123, 1.080123],
      [{ attention_factor: 1.5 }, 1.5, 1.5],
      [{ short_mscale: 1.1, long_mscale: 1.3 }, 1.1, 1.3],
    ])("with the magnitudes of %o", (own, ofShort, ofLong) => {
      const found = turnsOf({ ...options, scaling: { ...scaling, ...own } });
      expect(found.magnitude).toBeCloseTo(ofShort, 5);
      expect(found.long!.magnitude).toBeCloseTo(ofLong, 5);
    });

    test.each([
      ["alike", { long_factor: scaling.short_factor }],
      ["never used", { original_max_position_embeddings: 131_072 }],
      ["never used without an original length", { original_max_position_embeddings: undefined }],
    ])("with the short factors alone where long ones are %s", (_, own) => {
      const found = turnsOf({ ...options, scaling: { ...scaling, ...own } });
      expect(worstError(found.angles, { ...short })).toBeLessThan(1e-5);
      expect(found.long).toBeUndefined();
    });

    test("is refused where one set serves sequences of all lengths", () => {
      const weights = emptyWeights();
      const rope = makeRope(weights, { ...options, scaling });
      expect(() => ofAnyLength(rope)).toThrow("longrope with different short and long factors");
      expect(ofAnyLength({ ...rope, long: undefined }).dims).toBe(12);
      weights.arrays.free();
    });

    test("has a length in the configuration of its model", () => {
      const config = { rope_theta: 10_000, max_position_embeddings: 131_072 };
      expect(originalLength({ ...config, rope_scaling: scaling })).toBe(4096);
      expect(originalLength({ ...config, rope_scaling: { type: "yarn", factor: 2 } })).toBe(
        undefined,
      );
    });
  });
});

describe("a configuration", () => {
  const base = {
    model_type: "llama",
    hidden_size: 64,
    num_hidden_layers: 1,
    intermediate_size: 64,
    num_attention_heads: 4,
    rms_norm_eps: 1e-6,
    vocab_size: 8,
    rope_theta: 10_000,
    max_position_embeddings: 99,
  };

  test("keeps base and scaling apart, or together in rope_parameters", () => {
    const scaling = { rope_type: "linear", factor: 2 };
    const parsed = (keys: object) => {
      const { base: theta, scaling: found } = ropeOptions(
        parseConfig(BaseConfig, { ...base, ...keys }),
        16,
      );
      return [theta, found?.rope_type, found?.factor];
    };
    expect(parsed({ rope_theta: 500, rope_scaling: scaling })).toEqual([500, "linear", 2]);
    const rope_parameters = { ...scaling, rope_theta: 500 };
    expect(parsed({ rope_parameters })).toEqual([500, "linear", 2]);
    const byType = { full_attention: { ...scaling, rope_theta: 500 }, sliding_attention: {} };
    expect(parsed({ rope_parameters: byType })).toEqual([500, "linear", 2]);
  });

  const refused: [RopeScaling, string][] = [
    [{ type: "ntk", factor: 2 }, "there is no ntk; there are default, linear, llama3"],
    [{ type: "linear" }, "rope_scaling has no factor"],
    [{ type: "longrope", long_factor: [1] }, "short_factor and long_factor: expected 4 numbers"],
  ];
  test.each(refused)("is refused with %o", (scaling, message) => {
    const weights = emptyWeights();
    const options = { dims: 8, base: 10_000, scaling };
    expect(() => makeRope(weights, options)).toThrow(LoadError);
    expect(() => makeRope(weights, options)).toThrow(message);
    weights.arrays.free();
  });
});
