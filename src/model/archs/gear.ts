// Gear: Gemma 3's norms, windows and positions, and layers in which keys and values of the last few tokens are
// convolved and gated by queries, in place of attention.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { expandDims, multiply, reshape, sigmoid, split } from "../../mlx/ops.ts";
import { gatingOf } from "../activations.ts";
import { headsOf, integer, layerTypes, positive, word } from "../config.ts";
import { normsAround } from "../design.ts";
import { family } from "../family.ts";
import { type AttentionBlock, type AttentionSizes, projection, rmsNorm } from "../layers.ts";
import { convolution } from "../recurrent-layers.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";
import { localRopeKeys } from "./gemma3-text.ts";

export const gear = family({
  config: {
    ...localRopeKeys,
    layer_types: layerTypes("full_attention", "sliding_attention", "conv_mixer").nullish(),
    query_pre_attn_scalar: positive.nullish(),
    hidden_activation: word.default("gelu_pytorch_tanh"),
    conv_L_cache: integer.min(2).default(3),
    final_logit_softcapping: positive.nullish(),
    attn_logit_softcapping: positive.nullish(),
    use_bidirectional_attention: z.literal(false).default(false),
  },
  leftOut: /embed_scale$/,
  names: { ".local_mixer.": ".self_attn." },
  design: (config, weights) => {
    const { hidden_size: dims, rms_norm_eps: eps } = config;
    const sizes = { dims, ...headsOf(config) };
    return {
      norms: normsAround,
      normOffset: 1,
      headNorms: ["q_norm", "k_norm"],
      localRopeBase: config.rope_local_base_freq,
      attention: {
        scale: (config.query_pre_attn_scalar ?? sizes.headDim) ** -0.5,
        softcap: config.attn_logit_softcapping ?? undefined,
      },
      mix: (name, layer, states) =>
        config.layer_types?.[layer] === "conv_mixer"
          ? convolvedMixer(weights, name, states, sizes, config.conv_L_cache, eps)
          : undefined,
      gating: gatingOf(config.hidden_activation, "hidden_activation"),
      embeddingScale: dims ** 0.5,
      logitCap: config.final_logit_softcapping,
    };
  },
});

function convolvedMixer(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: AttentionSizes,
  taps: number,
  eps: number,
): AttentionBlock {
  const { dims, heads, kvHeads, headDim } = sizes;
  const [queries, keys] = [heads * headDim, kvHeads * headDim];
  const project = projection(weights, name, sizes);
  const oProj = weights.linear(`${name}.o_proj`, queries, dims);
  const [qNorm, kNorm] = ["q_norm", "k_norm"].map((part) =>
    rmsNorm(weights, `${name}.${part}`, headDim, eps, 1),
  );
  const [forKeys, forValues] = ["key_conv", "value_conv"].map((part) => ({
    state: states.slot(taps - 1, keys),
    convolution: convolution(weights, `${name}.${part}`, keys, taps),
  }));
  const byHead = (x: MlxArray, axes: number[]) => reshape(x, [-1, ...axes, headDim]);
  return (x, step, { norm, residual } = {}) => {
    const parts = split(project(x, { norm }), [queries, queries + keys]);
    const [q, k, v] = parts as [MlxArray, MlxArray, MlxArray];
    const normedKeys = reshape(kNorm!(byHead(k, [kvHeads])), [-1, keys]);
    const placed = (from: typeof forKeys, input: MlxArray) => {
      const mixed = step.convolve(from!.state, input, from!.convolution);
      return expandDims(byHead(mixed, [kvHeads]), 2); // (T, kvHeads, 1, D)
    };
    const query = qNorm!(byHead(q, [kvHeads, heads / kvHeads]));
    const open = sigmoid(multiply(query, placed(forKeys, normedKeys)));
    return oProj(reshape(multiply(open, placed(forValues, v)), [-1, queries]), { residual });
  };
}
