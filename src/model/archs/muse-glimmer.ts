// Muse Glimmer, by Meta: gated attention, norms before and behind attention and MLP, RoPE only in layers with a window.
// Of files that also see, the part that reads and writes text.
import { z } from "zod";
import { multiply, sigmoid } from "../../mlx/ops.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { unwrapText } from "../decoder.ts";
import { opened, plainNorm, rmsNorm, softCap } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  head_dim: z.int().positive().default(128),
  rms_norm_eps: z.number().positive().default(1e-5),
  /** Of the norms behind. */
  post_norm_eps: z.number().positive().default(1e-8),
  sliding_window: z.int().positive().default(2048),
  rope_theta: z.number().positive().default(500_000),
  qk_scale_factor: z.number().positive().default(3.87),
  /** 0 for layers without positions: those without a window unless it says. */
  layer_rope_theta: z.array(z.number()).nullish(),
  hidden_activation: z.literal("silu").default("silu"),
  tie_word_embeddings: z.boolean().default(false),
  final_logit_softcapping: z.number().positive().default(20),
  output_multiplier: z.number().positive().default(0.19611613513818404),
  /** GGUF files keep norms as they are used: their configuration says 0. */
  norm_offset: z.number().default(1),
});

export function museGlimmer(config: unknown, weights: Weights): Model {
  const { text_config } = Object(config) as { text_config?: object };
  const parsed = parseConfig(Config, { ...Object(config), ...text_config });
  const { hidden_size: dims, rms_norm_eps: eps, post_norm_eps, layer_rope_theta } = parsed;
  const { final_logit_softcapping: cap, output_multiplier } = parsed;
  unwrapText(weights);
  const headNorm = plainNorm(weights, parsed.head_dim, eps);
  return transformer(parsed, weights, {
    makeNorm: (name) => {
      const isBehind = /\.post_\w+$/.test(name);
      const offset = name.startsWith("model.layers.") ? parsed.norm_offset : 0;
      return rmsNorm(weights, name, dims, isBehind ? post_norm_eps : eps, offset);
    },
    norms: {
      attention: "input_layernorm",
      afterAttention: "post_attention_layernorm",
      mlp: "pre_feedforward_layernorm",
      afterMlp: "post_feedforward_layernorm",
    },
    slides: (layer) => layer % 4 !== 3,
    rope: (whole, window, layer) =>
      (layer_rope_theta ? layer_rope_theta[layer] : window) ? whole() : undefined,
    attention: { scale: parsed.head_dim ** -0.5 * parsed.qk_scale_factor },
    parts: (name, { heads, headDim }) => {
      const gate = weights.linear(`${name}.gate_proj`, dims, heads * headDim);
      // GGUF files have the factor of queries as weights of a norm.
      const normOf = (part: string) =>
        weights.has(`${name}.${part}.weight`)
          ? rmsNorm(weights, `${name}.${part}`, headDim, eps)
          : headNorm;
      return {
        qNorm: normOf("q_norm"),
        kNorm: normOf("k_norm"),
        afterwards: (attended, x, fused) => opened(attended, sigmoid(gate(x, fused))),
      };
    },
    afterEmbedding: (h) => weights.device.rmsNorm(h, undefined, eps),
    afterLogits: (logits) => softCap(multiply(logits, output_multiplier), cap),
    ignored: /^(model\.)?vision_(tower|adapter|projection)/,
  });
}
