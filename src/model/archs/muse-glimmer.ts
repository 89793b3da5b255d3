// Muse Glimmer, by Meta: gated attention, norms before and after attention and MLP, RoPE only in layers with a
// window. Loads only the text decoder of multimodal files.
import { z } from "zod";
import { positive, real } from "../checkpoint/config.ts";
import { normsAround } from "../design/design.ts";
import { family, textPart } from "../design/family.ts";
import { rmsNorm } from "../layers/layers.ts";

const text = family({
  config: {
    /** Epsilon of the norms after attention and MLP. */
    post_norm_eps: positive.default(1e-8),
    qk_scale_factor: positive.default(3.87),
    /** RoPE base per layer, 0 for no RoPE; by default only layers with a window have RoPE. */
    layer_rope_theta: z.array(real).nullish(),
    hidden_activation: z.literal("silu").default("silu"),
    final_logit_softcapping: positive.default(20),
    output_multiplier: positive.default(0.19611613513818404),
  },
  defaults: {
    head_dim: 128,
    rms_norm_eps: 1e-5,
    sliding_window: 2048,
    rope_theta: 500_000,
    tie_word_embeddings: false,
  },
  design: ({ rms_norm_eps: eps, layer_rope_theta: thetas, ...config }, weights) => ({
    norms: normsAround,
    makeNorm: (name, dims) => {
      const isBehind = /\.post_\w+$/.test(name);
      const offset = name.startsWith("model.layers.") ? (config.norm_offset ?? 1) : 0;
      return rmsNorm(weights, name, dims, isBehind ? config.post_norm_eps : eps, offset);
    },
    // Only GGUF files have head norm weights, which contain the factor on queries; others get plain norms.
    headNorms: weights.stored.has("model.layers.0.self_attn.q_norm.weight")
      ? ["q_norm", "k_norm"]
      : "plain",
    outputGate: { name: "gate_proj" },
    slides: (layer) => layer % 4 !== 3,
    rope: (whole, window, layer) => ((thetas ? thetas[layer] : window) ? whole() : undefined),
    attention: { scale: config.head_dim! ** -0.5 * config.qk_scale_factor },
    afterEmbedding: (h) => weights.device.rmsNorm(h, undefined, eps),
    logitScale: config.output_multiplier,
    logitCap: config.final_logit_softcapping,
  }),
});

export const museGlimmer = textPart(text, { isBare: true });
