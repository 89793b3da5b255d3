// Nanbeige: Llama that runs its layers several times, each loop with its own keys and values.
import { z } from "zod";
import { count, flag, headsOf, real } from "../checkpoint/config.ts";
import { makeRope, ropeOptions } from "../contract/rope.ts";
import { family } from "../design/family.ts";
import {
  attentionBlock,
  type Block,
  gatedMlp,
  ownHeads,
  preNormBlock,
  rmsNorm,
  type SharedBlock,
} from "../layers/layers.ts";

export const nanbeige = family({
  config: {
    num_loops: count.max(16).default(1),
    /** One weight per loop after the first; the list's length gives the number of loops. */
    loop_loss_weights: z.array(real).max(15).nullish(),
    skip_loop_final_norm: flag.default(false),
    /** Features that no published model has, so they are refused. */
    enable_double_loop_split: z.literal(false).default(false),
    loop_share_kv: z.literal(false).default(false),
    enable_depth_attention: z.literal(false).default(false),
  },
  design: (config, weights) => {
    const { num_hidden_layers: layers, loop_loss_weights, skip_loop_final_norm } = config;
    const { hidden_size: dims, intermediate_size: hidden, rms_norm_eps: eps } = config;
    const loops = loop_loss_weights?.length ? loop_loss_weights.length + 1 : config.num_loops;
    const all = { dims, ...headsOf(config) };
    const rope = makeRope(weights, ropeOptions(config, all.headDim));
    const attention = { scale: all.headDim ** -0.5 };
    const norm = rmsNorm(weights, "model.norm", dims, eps);
    /** Per layer, a function that makes its block for the next loop. */
    const next: (() => Block)[] = [];
    return {
      config: { num_hidden_layers: layers * loops },
      makeNorm: () => norm,
      layer: (_, at, states) => {
        const layer = at % layers;
        if (!next[layer]) {
          const name = `model.layers.${layer}`;
          const parts = { rope, attention };
          const sizes = ownHeads(weights, `${name}.self_attn`, all);
          const makeAttend = () =>
            attentionBlock(weights, `${name}.self_attn`, states, sizes, parts);
          let attend: SharedBlock | undefined;
          const mlp = gatedMlp(weights, `${name}.mlp`, dims, hidden);
          const inputNorm = rmsNorm(weights, `${name}.input_layernorm`, dims, eps);
          const postNorm = rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps);
          next[layer] = () => {
            attend = attend?.again() ?? makeAttend();
            return preNormBlock(attend, mlp, inputNorm, postNorm);
          };
        }
        const block = next[layer]!();
        const endsLoop = layer === layers - 1 && at < layers * loops - 1;
        return endsLoop && !skip_loop_final_norm ? (x, step) => norm(block(x, step)) : block;
      },
    };
  },
});
