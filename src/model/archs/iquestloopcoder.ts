// IQuest Loop Coder: Llama that runs its layers twice. In the second pass each head attends to the first pass's keys
// and, within a window, to the second's; a gate mixes both.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  concatenate,
  contiguous,
  multiply,
  reshape,
  sigmoid,
  slice,
  subtract,
  sum,
} from "../../mlx/ops.ts";
import { count, headsOf } from "../checkpoint/config.ts";
import type { Step } from "../contract/model.ts";
import { makeRope, ropeOptions } from "../contract/rope.ts";
import type { LayerStates } from "../contract/states.ts";
import { family } from "../design/family.ts";
import { type Crossing, handingOn } from "../layers/crossings.ts";
import { rotatedFirst } from "../layers/head-changes.ts";
import {
  type AttentionBlock,
  type AttentionSizes,
  type Block,
  gatedMlp,
  headFeatures,
  ownHeads,
  preNormBlock,
  projection,
  rmsNorm,
} from "../layers/layers.ts";
import type { Weights } from "../weights/weights.ts";

export const iquestLoopCoder = family({
  config: { loop_num: z.literal(2).default(2), loop_window_size: count.default(64) },
  defaults: { rope_theta: 500_000 },
  design: (config, weights) => {
    const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = config;
    const { num_hidden_layers: layers, loop_window_size: window } = config;
    const all = { dims, ...headsOf(config) };
    const rope = makeRope(weights, ropeOptions(config, all.headDim));
    const scale = all.headDim ** -0.5;
    const kvWidth = 2 * all.kvHeads * all.headDim;
    /** Per layer, functions that make its block for the first and for the second pass. */
    const passes: { first(): Block; second(): Block }[] = [];
    /** Keys and values of the first pass, which the second pass reads. */
    const crossings = Array.from({ length: layers }, (_, from): Crossing => {
      return { from, to: layers + from, width: kvWidth };
    });
    const makePasses = (layer: number, states: LayerStates) => {
      const name = `model.layers.${layer}`;
      const attention = `${name}.self_attn`;
      const crossing = crossings[layer]!;
      const sizes = ownHeads(weights, attention, all);
      const width = sizes.heads * sizes.headDim;
      // Rotates before attention, because the gates depend on rotated queries.
      const { project } = rotatedFirst(projection(weights, attention, sizes), sizes, rope);
      const oProj = weights.linear(`${attention}.o_proj`, headFeatures(sizes), dims);
      const mlp = gatedMlp(weights, `${name}.mlp`, dims, intermediate_size);
      const inputNorm = rmsNorm(weights, `${name}.input_layernorm`, dims, eps);
      const postNorm = rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps);
      const firstKv = states.kv(sizes);
      const [own, whole, near] = [{ scale }, { scale }, { scale, window }];
      let isFirstElsewhere = true;
      return {
        first() {
          isFirstElsewhere = false;
          const handed = weights.stage ? handingOn(project, kvWidth, crossing) : project;
          const attend: AttentionBlock = (x, step, { norm, residual } = {}) =>
            oProj(step.attend(firstKv, handed(x, { norm }, step), sizes, own), { residual });
          return preNormBlock(attend, mlp, inputNorm, postNorm);
        },
        second() {
          const mix = gatedMix(weights, `model.gate_projections.${layer}`, sizes);
          const state = states.kv({ ...sizes, window });
          const far: (queries: MlxArray, step: Step) => MlxArray = isFirstElsewhere
            ? (queries, step) =>
                step.attend(firstKv, concatenate([queries, crossing.value!], -1), sizes, whole)
            : (queries, step) => step.attend(firstKv, queries, { ...sizes, sharesKv: true }, whole);
          const attendBoth: AttentionBlock = (x, step, { norm, residual } = {}) => {
            const qkv = project(x, { norm }, step);
            const queries = contiguous(slice(qkv, 1, 0, width));
            const seen = step.attend(state, qkv, sizes, near);
            return oProj(mix(queries, far(queries, step), seen), { residual });
          };
          return preNormBlock(attendBoth, mlp, inputNorm, postNorm);
        },
      };
    };
    return {
      config: { num_hidden_layers: 2 * layers },
      crossings,
      layer: (_, at, states) => {
        const layer = at % layers;
        passes[layer] ??= makePasses(layer, states);
        return at < layers ? passes[layer].first() : passes[layer].second();
      },
    };
  },
});

/** Returns a function that computes gate * far + (1 - gate) * near; each head's gate depends on its query. */
function gatedMix(weights: Weights, name: string, sizes: AttentionSizes) {
  const { heads, headDim } = sizes;
  const own = headFeatures(sizes, 1);
  const weight = weights.part(`${name}.weight`, own, [headDim]);
  const bias = weights.part(`${name}.bias`, own);
  return (queries: MlxArray, far: MlxArray, near: MlxArray) => {
    const byHead = (x: MlxArray) => reshape(x, [-1, heads, headDim]);
    const scores = add(sum(multiply(byHead(queries), weight), -1), bias); // (T, heads)
    const gate = reshape(sigmoid(scores), [-1, heads, 1]);
    const mixed = add(byHead(near), multiply(gate, subtract(byHead(far), byHead(near))));
    return reshape(mixed, [-1, heads * headDim]);
  };
}
