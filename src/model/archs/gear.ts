// Gear: Gemma 3's norms, windows and positions; some layers replace attention by a convolution of the last few keys
// and values, gated by queries.
import { z } from "zod";
import { headsOf, integer, layerTypes, positive, word } from "../checkpoint/config.ts";
import { normsAround } from "../design/design.ts";
import { family } from "../design/family.ts";
import { gatingOf } from "../layers/activations.ts";
import { convolvedMixer } from "../layers/convolution-layers.ts";
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
