// Faults that are written into the Metal kernels' source on purpose: the emulator, or the numbers, find each of them.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { type AttentionCase, checkAttention } from "../support/checked-attention.ts";
import { useMlx } from "../support/mlx.ts";
import { mutatedKernel } from "../support/mutated-kernel.ts";

useMlx();

const attention: AttentionCase = {
  headDim: 64,
  kvHeads: 2,
  headsPerKv: 1,
  dtype: "float32",
  normed: true,
  rotaryDims: 32,
};

/** What a comparison of numbers says. */
const WRONG = "toBeLessThan";

const mutations = [
  {
    name: "a barrier out",
    kernel: "attend",
    from: "  BARRIER;\n  SHARED float sums[",
    to: "  SHARED float sums[",
    found: /mlx_serve_attend .*lane \d+ reads byte \d+ of prepared, which nobody has written/,
  },
  {
    name: "a barrier of a simdgroup in place of its group's",
    kernel: "attend",
    from: "  BARRIER;\n  SHARED float sums[",
    to: "  WARP_BARRIER;\n  SHARED float sums[",
    found: /mlx_serve_attend .*lane \d+ reads byte \d+ of prepared, which nobody has written/,
  },
  {
    name: "a barrier out between lanes of a simdgroup",
    kernel: "prepare",
    from: "  BARRIER;\n  if (is_rotated) {",
    to: "  if (is_rotated) {",
    found:
      /mlx_serve_prepare .*a race: lane \d+ reads byte \d+ of prepared, which lane \d+ has written/,
  },
  {
    name: "a wrong lane mask",
    kernel: "decode",
    from: "for (int mask = LANES / 2; mask > 0; mask /= 2)",
    to: "for (int mask = LANES / 4; mask > 0; mask /= 2)",
    found: WRONG,
  },
  {
    name: "a lane mask past the simdgroup",
    kernel: "decode",
    from: "for (int mask = LANES / 2; mask > 0; mask /= 2)",
    to: "for (int mask = 32; mask > 0; mask /= 2)",
    found: /mlx_serve_decode .*lane \d+ asks for what lane \d+ of its warp has/,
  },
  {
    name: "a missing bound of what is read",
    kernel: "prepare",
    from: "(index < ALL_HEADS ? index : 0)",
    to: "index",
    found: /mlx_serve_prepare .*lane \d+ reads 4 bytes at byte \d+ of qkv, which has \d+/,
  },
  {
    name: "a missing bound of what is written",
    kernel: "attend",
    from: "j < QUERIES * D; j += WARPS * 32) prepared[j]",
    to: "j < WARPS * 32; j += WARPS * 32) prepared[j]",
    found: /mlx_serve_attend .*lane 255 takes element 255 of 'float \[64\]' at mlx_serve_attend/,
  },
  {
    name: "a swapped stride",
    kernel: "prepare",
    from: "((long(slot / 32) * KV_HEADS + kv) * 32 + slot % 32) * D",
    to: "((long(slot / 32) * 32 + slot % 32) * KV_HEADS + kv) * D",
    found: WRONG,
  },
  {
    name: "a lost normalization of a head",
    kernel: "decode",
    from: "head[d] * scale * norm[d]",
    to: "head[d] * norm[d]",
    found: WRONG,
  },
  {
    name: "a lost normalization of the weights",
    kernel: "attend",
    from: "Out(sum / total)",
    to: "Out(sum)",
    found: WRONG,
  },
] as const;

describe.skipIf(backend() !== "cpu")("in an emulated Metal kernel the tests notice", () => {
  test.each(mutations)(
    "$name",
    ({ kernel, from, to, found }) => {
      const make = mutatedKernel(kernel, from, to);
      expect(() => checkAttention(attention, { emulated: "metal", make })).toThrow(found);
    },
    60_000,
  );
});
