// Builds multi-head latent attention (MLA): keys and values of all heads are projections of one small latent per
// token, and only this latent is stored. The key projections are absorbed into the queries, and the value projections
// are applied to attention's output, so no head's keys or values are ever computed.
import type { z } from "zod";
import type { HeadLinear, Norm } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { astype, expandDims, multiply, slice } from "../../mlx/ops.ts";
import { type BaseConfig, count } from "../checkpoint/config.ts";
import type { LatentOptions } from "../contract/model.ts";
import { makeRope, ofAnyLength, ropeOptions, yarnScale } from "../contract/rope.ts";
import type { LayerStates } from "../contract/states.ts";
import { countOf, type Extent, times } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";
import { type AttentionBlock, makeOutputGate, type OutputGate, rmsNorm } from "./layers.ts";

export type LatentSizes = {
  dims: number;
  heads: number;
  /** Size of the latent that queries are projected from; undefined if queries have no latent. */
  queryRank: number | undefined;
  /** Size of the latent that keys and values are projected from. */
  latent: number;
  /** Features of queries and keys with RoPE (`rotary`) and without RoPE (`plain`). */
  rotary: number;
  plain: number;
  /** Features of a head's values. */
  value: number;
};

export type LatentParts = Omit<LatentOptions, "norm"> & {
  /** Epsilon of the norms of the query latent and the KV latent. */
  eps: number;
  /** Factor on the KV latent after its norm. */
  latentScale?: number | undefined;
  /** Function of positions (T) that gives a factor on queries. */
  queryScale?: ((positions: MlxArray) => MlxArray) | undefined;
  outputGate?: OutputGate | undefined;
};

/** Epsilon of the latents' norms in most families; rms_norm_eps applies only to the other norms. */
const LATENT_EPS = 1e-6;

/** Configuration keys of latent attention. */
export const latentKeys = {
  q_lora_rank: count.nullish(),
  kv_lora_rank: count,
  qk_rope_head_dim: count,
  qk_nope_head_dim: count,
  v_head_dim: count,
};

type LatentConfig = BaseConfig & z.infer<z.ZodObject<typeof latentKeys>>;

/** Returns a design's `mix`, which builds a layer. RoPE follows the configuration unless `own` has one. */
export function latentLayers(
  config: LatentConfig,
  weights: Weights,
  { queryFactor = 1, ...own }: Partial<LatentParts> & { queryFactor?: number } = {},
) {
  const { qk_nope_head_dim: plain, qk_rope_head_dim: rotary } = config;
  const sizes = {
    dims: config.hidden_size,
    heads: config.num_attention_heads,
    queryRank: config.q_lora_rank ?? undefined,
    latent: config.kv_lora_rank,
    rotary,
    plain,
    value: config.v_head_dim,
  };
  const options = ropeOptions(config, rotary);
  const parts = {
    // Multiplies the scores by `queryFactor`, which equals multiplying the queries.
    scale: (plain + rotary) ** -0.5 * yarnScale(options) * queryFactor,
    rope: "rope" in own ? own.rope : ofAnyLength(makeRope(weights, options)),
    eps: LATENT_EPS,
    ...own,
  };
  return (name: string, _: number, states: LayerStates) =>
    latentAttention(weights, name, states, sizes, parts);
}

function latentAttention(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: LatentSizes,
  { eps, latentScale = 1, queryScale, outputGate, ...options }: LatentParts,
): AttentionBlock {
  const { dims, queryRank, latent, rotary, plain, value } = sizes;
  const division = { unit: value, inputOf: [`${name}.o_proj`] };
  const values = weights.ranks.divide(sizes.heads * value, division);
  /** This rank's heads; latents are not divided, so every rank stores them all. */
  const own = times(values, 1 / value);
  const heads = countOf(own);
  const state = states.latent({ heads, latent, rotary });
  const queries = times(own, plain + rotary);
  const queryDims = countOf(queries);
  const parts = [queryRank ? "q_a_proj" : "q_proj", "kv_a_proj_with_mqa"];
  const names = parts.map((part) => `${name}.${part}`);
  const outputs = [queryRank ?? queries, latent + rotary];
  const project = weights.joined(`${name}.q_kv_proj`, names, dims, outputs);
  const queryNorm = queryRank
    ? rmsNorm(weights, `${name}.q_a_layernorm`, queryRank, eps)
    : undefined;
  const toQueries = queryRank && weights.linear(`${name}.q_b_proj`, queryRank, queries);
  const latentNorm = rmsNorm(weights, `${name}.kv_a_layernorm`, latent, eps);
  const attention = { ...options, norm: scaledNorm(weights, latentNorm, latentScale) };
  const { absorb, toValues } = headLinears(weights, name, sizes, own);
  const gate =
    outputGate && makeOutputGate(weights, name, { dims, heads: own, headDim: value }, outputGate);
  const oProj = weights.linear(`${name}.o_proj`, values, dims);
  return (input, step, { norm, residual } = {}) => {
    const x = gate && norm ? norm(input) : input;
    const projected = project(x, { norm: gate ? undefined : norm }); // (T, queries and latents)
    const unscaled = toQueries
      ? toQueries(slice(projected, 1, 0, queryRank), { norm: queryNorm })
      : projected;
    const asked = queryScale
      ? multiply(unscaled, astype(expandDims(queryScale(step.positions()), 1), x.dtype))
      : unscaled;
    const stride = plain + rotary;
    const rows = {
      absorbed: absorb({ rows: asked, first: 0, stride }), // (T, heads * latent)
      placed: { rows: asked, first: plain, stride },
      latents: { rows: projected, first: queryRank ?? queryDims },
    };
    const attended = step.attendLatent(state, rows, attention);
    const made = toValues({ rows: attended, first: 0, stride: latent }); // (T, heads * value)
    return oProj(gate ? gate(made, x, {}) : made, { residual });
  };
}

/** Folds a factor on a norm's outputs into the norm's weight. */
function scaledNorm(weights: Weights, norm: Norm, scale: number): Norm {
  if (scale === 1) return norm;
  const weight = weights.arrays.computed(() => multiply(norm.weight, scale));
  const scaled = (x: MlxArray) => weights.device.rmsNorm(x, weight, norm.eps);
  return Object.assign(scaled, { weight, eps: norm.eps });
}

/** Loads each head's key and value matrices. MLX's files have them apart, the authors' files have one matrix. */
function headLinears(
  weights: Weights,
  name: string,
  { heads, latent, plain, value }: LatentSizes,
  own: Extent,
): { absorb: HeadLinear; toValues: HeadLinear } {
  const joint = `${name}.kv_b_proj`;
  const isJoint = weights.matrices.has(joint);
  const [keys, values] = [`${name}.embed_q`, `${name}.unembed_out`];
  if (isJoint) {
    weights.matrices.check(joint, [heads * (plain + value), latent]);
    const runs = (at: number, count: number) =>
      Array.from({ length: heads }, (_, head) => ({ first: head * (plain + value) + at, count }));
    weights.matrices.pick(joint, keys, runs(0, plain), [heads, plain]);
    weights.matrices.pick(joint, values, runs(plain, value), [heads, value]);
  }
  return {
    // The authors' matrix is (plain, latent) per head and quantized along the latent, so it is used transposed.
    absorb: weights.byHead(keys, own, plain, latent, { isTransposed: isJoint }),
    toValues: weights.byHead(values, own, latent, value),
  };
}
