// Apple's foundation model of 7B: head norms after RoPE, keys and values rounded to 8 bits, and last layers that read
// the keys and values of an earlier layer.
import type { MlxArray } from "../../mlx/array.ts";
import { astype, clip, divide, multiply, reshape, round } from "../../mlx/ops.ts";
import { integer, kvOwnersOf, positive } from "../checkpoint/config.ts";
import { ofAnyLength, rotated } from "../contract/rope.ts";
import { family } from "../design/family.ts";
import { changedHeads } from "../layers/head-changes.ts";
import { headFeatures, projection, rmsNorm } from "../layers/layers.ts";
import { halves } from "../layers/qkv.ts";
import type { Weights } from "../weights/weights.ts";

export const afm7 = family({
  config: { num_kv_reuse_layers: integer.min(0), hidden_dim_scale_factor: positive.default(3.25) },
  defaults: { rope_theta: 50_000, rms_norm_eps: 1e-5 },
  keys: {
    hidden_size: "hidden_dim",
    num_hidden_layers: "num_layers",
    num_attention_heads: "num_heads",
    num_key_value_heads: "num_kv_heads",
  },
  design: ({ hidden_size, num_hidden_layers, num_kv_reuse_layers: reuse, ...config }, weights) => {
    const owners = kvOwnersOf(num_hidden_layers, reuse, "num_kv_reuse_layers");
    for (let i = 0; i < reuse; i++) {
      weights.stored.rename({ [`model.kv_reuse_layers.${i}.`]: `model.layers.${owners + i}.` });
    }
    return {
      config: { tie_word_embeddings: true },
      hidden: Math.floor(hidden_size * config.hidden_dim_scale_factor),
      rotatesNeighbours: true,
      kvOwners: owners,
      parts: (name, sizes, { rope, isSharing }) => {
        const { dims, heads, headDim } = sizes;
        const headNorm = (part: string) => {
          weights.matrices.reorder(`${name}.${part}`, halves(1, headDim, headDim));
          return rmsNorm(weights, `${name}.${part}`, headDim, 1e-5);
        };
        const own = ofAnyLength(rope!);
        const place = (x: MlxArray, positions: MlxArray) => rotated(x, own, positions);
        const qNorm = headNorm("q_norm");
        if (isSharing) {
          const product = weights.linear(`${name}.q_proj`, dims, headFeatures(sizes));
          return {
            rope: undefined,
            project: (x, fused, step) => {
              const q = reshape(product(x, fused), [-1, heads, headDim]);
              return reshape(qNorm(place(q, step.positions())), [-1, heads * headDim]);
            },
          };
        }
        const kNorm = headNorm("k_norm");
        const roundKeys = rounding(weights, `${name}.quant_key_scale`);
        const roundValues = rounding(weights, `${name}.quant_value_scale`);
        const project = projection(weights, name, sizes);
        return {
          rope: undefined,
          project: changedHeads(project, sizes, ({ q, k, v }, step) => ({
            q: qNorm(place(q, step.positions())),
            k: roundKeys(kNorm(place(k, step.positions()))),
            v: roundValues(v),
          })),
        };
      },
    };
  },
});

/** Returns a function that rounds to 8 bits, as in training, with the scale in the tensor `name`. */
function rounding(weights: Weights, name: string): (x: MlxArray) => MlxArray {
  const scale = weights.arrays.scalar(name, "float32");
  return (x) => {
    const steps = clip(round(divide(astype(x, "float32"), scale)), -128, 127);
    return astype(multiply(steps, scale), x.dtype);
  };
}
