// IQuest Loop Coder: Llama whose layers are passed twice. The second time each head attends to the keys of the first
// time, and to those of the second within a window, and a gate mixes what it gets.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  contiguous,
  multiply,
  reshape,
  sigmoid,
  slice,
  subtract,
  sum,
} from "../../mlx/ops.ts";
import { count, headsOf } from "../config.ts";
import { family } from "../family.ts";
import { rotatedFirst } from "../head-changes.ts";
import {
  type AttentionBlock,
  type AttentionSizes,
  type Block,
  gatedMlp,
  preNormBlock,
  projection,
  rmsNorm,
} from "../layers.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

export const iquestLoopCoder = family({
  config: { loop_num: z.literal(2).default(2), loop_window_size: count.default(64) },
  defaults: { rope_theta: 500_000 },
  design: (config, weights) => {
    const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = config;
    const { num_hidden_layers: layers, loop_window_size: window } = config;
    const sizes = { dims, ...headsOf(config) };
    const width = sizes.heads * sizes.headDim;
    const rope = makeRope(weights, ropeOptions(config, sizes.headDim));
    const scale = sizes.headDim ** -0.5;
    /** Of each layer, its second pass. */
    const second: (() => Block)[] = [];
    return {
      config: { num_hidden_layers: 2 * layers },
      crossesLayers: true,
      layer: (name, layer, states) => {
        if (layer >= layers) return second[layer - layers]!();
        const attention = `${name}.self_attn`;
        // Gates are made of queries with their position, so that RoPE comes before attention.
        const { project } = rotatedFirst(projection(weights, attention, sizes), sizes, rope);
        const oProj = weights.linear(`${attention}.o_proj`, width, dims);
        const mlp = gatedMlp(weights, `${name}.mlp`, dims, intermediate_size);
        const inputNorm = rmsNorm(weights, `${name}.input_layernorm`, dims, eps);
        const postNorm = rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps);
        const first = states.kv(sizes);
        const [own, whole, near] = [{ scale }, { scale }, { scale, window }];
        const attend: AttentionBlock = (x, step, { norm, residual } = {}) =>
          oProj(step.attend(first, project(x, { norm }, step), sizes, own), { residual });
        second[layer] = () => {
          const mix = gatedMix(weights, `model.gate_projections.${layer}`, sizes);
          const state = states.kv({ ...sizes, window });
          const attendBoth: AttentionBlock = (x, step, { norm, residual } = {}) => {
            const qkv = project(x, { norm }, step);
            const queries = contiguous(slice(qkv, 1, 0, width));
            const far = step.attend(first, queries, { ...sizes, sharesKv: true }, whole);
            return oProj(mix(queries, far, step.attend(state, qkv, sizes, near)), { residual });
          };
          return preNormBlock(attendBoth, mlp, inputNorm, postNorm);
        };
        return preNormBlock(attend, mlp, inputNorm, postNorm);
      },
    };
  },
});

/** gate * far + (1 - gate) * near, with a gate a head that its query opens. */
function gatedMix(weights: Weights, name: string, { heads, headDim }: AttentionSizes) {
  const weight = weights.tensor(`${name}.weight`, [heads, headDim]);
  const bias = weights.tensor(`${name}.bias`, [heads]);
  return (queries: MlxArray, far: MlxArray, near: MlxArray) => {
    const byHead = (x: MlxArray) => reshape(x, [-1, heads, headDim]);
    const scores = add(sum(multiply(byHead(queries), weight), -1), bias); // (T, heads)
    const gate = reshape(sigmoid(scores), [-1, heads, 1]);
    const mixed = add(byHead(near), multiply(gate, subtract(byHead(far), byHead(near))));
    return reshape(mixed, [-1, heads * headDim]);
  };
}
