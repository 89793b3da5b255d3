// Gated delta nets, as in Qwen 3 Next, Qwen 3.5 and OLMo Hybrid.
import type { z } from "zod";
import type { RawColumns } from "../../kernels/recurrence/recurrence.ts";
import { type BaseConfig, count } from "../checkpoint/config.ts";
import type { LayerStates } from "../contract/states.ts";
import type { Weights } from "../weights/weights.ts";
import { type AttentionBlock, headFeatures, kvFeatures, ownHeads, rmsNorm } from "./layers.ts";
import { convolution, decayRule, deltaScan } from "./recurrent-layers.ts";

/** Configuration keys of delta nets. */
export const deltaNetKeys = {
  linear_num_key_heads: count,
  linear_num_value_heads: count,
  linear_key_head_dim: count,
  linear_value_head_dim: count,
  linear_conv_kernel_dim: count,
};

type DeltaNetConfig = Pick<BaseConfig, "hidden_size"> & z.infer<z.ZodObject<typeof deltaNetKeys>>;

export function deltaNetSizes(config: DeltaNetConfig): DeltaNetSizes {
  return {
    dims: config.hidden_size,
    keyHeads: config.linear_num_key_heads,
    valueHeads: config.linear_num_value_heads,
    keyDim: config.linear_key_head_dim,
    valueDim: config.linear_value_head_dim,
    taps: config.linear_conv_kernel_dim,
  };
}

export type DeltaNetSizes = {
  dims: number;
  keyHeads: number;
  valueHeads: number;
  keyDim: number;
  valueDim: number;
  /** Number of taps of the convolution. */
  taps: number;
};

/**
 * Builds a gated delta net from in_proj_qkv (or q_proj, k_proj, v_proj), in_proj_z, in_proj_b, in_proj_a, conv1d,
 * A_log, dt_bias, norm, out_proj. `most`: upper bound of betas.
 */
export function deltaNet(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: DeltaNetSizes,
  eps: number,
  most = 1,
): AttentionBlock {
  const { dims, keyDim, valueDim, taps } = sizes;
  const all = { dims, heads: sizes.valueHeads, kvHeads: sizes.keyHeads, headDim: valueDim };
  const own = ownHeads(weights, name, all, "out_proj");
  const { heads: valueHeads, kvHeads: keyHeads } = own;
  const ownValueHeads = headFeatures(own, 1);
  const [outputs, ownKeys] = [headFeatures(own), kvFeatures(own, keyDim)];
  const [keys, values] = [keyHeads * keyDim, valueHeads * valueDim];
  const channels = 2 * keys + values;
  const ownChannels = [ownKeys, ownKeys, outputs];
  const isJoint = weights.matrices.has(`${name}.in_proj_qkv`);
  const qkv = isJoint ? ["in_proj_qkv"] : ["q_proj", "k_proj", "v_proj"];
  const parts = [...qkv, "in_proj_z", "in_proj_b", "in_proj_a"].map((part) => `${name}.${part}`);
  const widths = isJoint ? [ownChannels] : ownChannels;
  const rates = [ownValueHeads, ownValueHeads];
  const project = weights.joined(`${name}.in_proj`, parts, dims, [...widths, outputs, ...rates]);
  const convolved = {
    ...convolution(weights, `${name}.conv1d`, ownChannels, taps, "silu"),
    column: 0,
  };
  const columns: RawColumns = {
    ...decayRule(weights, name, ownValueHeads),
    betas: channels + values,
    steps: channels + values + valueHeads,
    betaFactor: most,
    output: { column: channels, norm: rmsNorm(weights, `${name}.norm`, valueDim, eps) },
  };
  const outProj = weights.linear(`${name}.out_proj`, outputs, dims);
  const inputs = states.slot(taps - 1, channels);
  const state = states.slot(valueHeads, valueDim, keyDim);
  const scan = deltaScan(keyHeads, keyDim);
  return (x, step, { norm, residual } = {}) => {
    const raw = project(x, { norm });
    const mixed = step.convolve(inputs, raw, convolved);
    const read = step.scan(state, { x: mixed, gates: { raw, columns } }, scan);
    return outProj(read, { residual });
  };
}

/** Splits Qwen 3 Next's two matrices, grouped by key head, into in_proj_qkv, in_proj_z, in_proj_b and in_proj_a. */
export function arrangeDeltaNet({ matrices }: Weights, name: string, sizes: DeltaNetSizes): void {
  const { dims, keyHeads: heads, keyDim } = sizes;
  const each = sizes.valueHeads / heads;
  const values = each * sizes.valueDim;
  const width = 2 * keyDim + 2 * values;
  const runs = (size: number, at: number, length: number) =>
    Array.from({ length: heads }, (_, head) => ({ first: head * size + at, count: length }));
  const [mixed, rates] = [`${name}.in_proj_qkvz`, `${name}.in_proj_ba`];
  // Splits Qwen 3 Next's joint matrix. Other files do not have it: GGUF stores its parts, Qwen 3.5 separate matrices.
  if (matrices.has(mixed)) {
    matrices.check(mixed, [heads * width, dims]);
    matrices.pick(mixed, `${name}.in_proj_qkv`, [
      ...runs(width, 0, keyDim),
      ...runs(width, keyDim, keyDim),
      ...runs(width, 2 * keyDim, values),
    ]);
    matrices.pick(mixed, `${name}.in_proj_z`, runs(width, 2 * keyDim + values, values));
  }
  if (matrices.has(rates)) {
    matrices.check(rates, [2 * each * heads, dims]);
    matrices.pick(rates, `${name}.in_proj_b`, runs(2 * each, 0, each));
    matrices.pick(rates, `${name}.in_proj_a`, runs(2 * each, each, each));
  }
}
