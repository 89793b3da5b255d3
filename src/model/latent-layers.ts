// Multi-head latent attention (MLA): keys and values of all heads are products of one small vector a token, which is
// all that is kept of it. The matrices of the keys are absorbed into the queries, and those of the values are applied
// to what was attended, so that no head's keys or values are ever computed.
import { concatenate, reshape, split, swapAxes } from "../mlx/ops.ts";
import { type AttentionBlock, rmsNorm } from "./layers.ts";
import type { LatentOptions } from "./model.ts";
import type { LayerStates } from "./states.ts";
import type { HeadLinear, Weights } from "./weights.ts";

export type LatentSizes = {
  dims: number;
  heads: number;
  /** Of the vector that queries are products of; undefined where they are projected at once. */
  queryRank: number | undefined;
  /** Of the vector that keys and values are products of. */
  latent: number;
  /** Of queries and keys: features with a position, and features without one. */
  rotary: number;
  plain: number;
  /** Of a head's values. */
  value: number;
};

/** `eps` of the norms of both vectors. */
export function latentAttention(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: LatentSizes,
  options: LatentOptions & { eps: number },
): AttentionBlock {
  const { dims, heads, queryRank, latent, rotary, plain, value } = sizes;
  const { eps } = options;
  const state = states.latent({ heads, latent, rotary });
  const queryDims = heads * (plain + rotary);
  const parts = [queryRank ? "q_a_proj" : "q_proj", "kv_a_proj_with_mqa"];
  const project = weights.joined(
    `${name}.q_kv_proj`,
    parts.map((part) => `${name}.${part}`),
    dims,
    [queryRank ?? queryDims, latent + rotary],
  );
  const queryNorm = queryRank
    ? rmsNorm(weights, `${name}.q_a_layernorm`, queryRank, eps)
    : undefined;
  const toQueries = queryRank && weights.linear(`${name}.q_b_proj`, queryRank, queryDims);
  const latentNorm = rmsNorm(weights, `${name}.kv_a_layernorm`, latent, eps);
  const { absorb, toValues } = headLinears(weights, name, sizes);
  const oProj = weights.linear(`${name}.o_proj`, heads * value, dims);
  return (x, step, { norm, residual } = {}) => {
    const tokens = x.shape[0]!;
    const [q, kv] = split(project(x, { norm }), [queryRank ?? queryDims]);
    const projected = toQueries ? toQueries(q!, { norm: queryNorm }) : q!;
    const byHead = reshape(projected, [tokens, heads, plain + rotary]);
    const [unplaced, placed] = split(byHead, [plain]);
    const absorbed = swapAxes(absorb(swapAxes(unplaced!, 0, 1)), 0, 1); // (T, heads, latent)
    const queries = reshape(concatenate([absorbed, placed!], -1), [tokens, -1]);
    const [compressed, position] = split(kv!, [latent]);
    const latents = concatenate([latentNorm(compressed!), position!], -1);
    const attended = step.attendLatent(state, queries, latents, options);
    const latentsByHead = swapAxes(reshape(attended, [tokens, heads, latent]), 0, 1);
    const values = swapAxes(toValues(latentsByHead), 0, 1); // (T, heads, value)
    return oProj(reshape(values, [tokens, heads * value]), { residual });
  };
}

/** MLX's files have the matrices of keys and values apart, the authors' have them head by head in one. */
function headLinears(
  weights: Weights,
  name: string,
  { heads, latent, plain, value }: LatentSizes,
): { absorb: HeadLinear; toValues: HeadLinear } {
  const joint = `${name}.kv_b_proj`;
  const isJoint = weights.has(`${joint}.weight`);
  const [keys, values] = [`${name}.embed_q`, `${name}.unembed_out`];
  if (isJoint) {
    weights.check(joint, [heads * (plain + value), latent]);
    const runs = (at: number, count: number) =>
      Array.from({ length: heads }, (_, head) => ({ first: head * (plain + value) + at, count }));
    weights.pick(joint, keys, runs(0, plain), [heads, plain]);
    weights.pick(joint, values, runs(plain, value), [heads, value]);
  }
  return {
    // The authors have (plain, latent), which is also how they are quantized.
    absorb: weights.byHead(keys, heads, plain, latent, { isTransposed: isJoint }),
    toValues: weights.byHead(values, heads, latent, value),
  };
}
