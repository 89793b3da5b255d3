// OLMo 1: layer norms without weights, and in some models clipped queries, keys and values.
import { count, positive } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const olmo = family({
  config: {
    clip_qkv: positive.nullish(),
    /** Width of gate and up together, in configurations for the authors' code. */
    mlp_hidden_size: count.nullish(),
  },
  // Key names of the authors' code, which differ from transformers'.
  keys: {
    hidden_size: "d_model",
    num_hidden_layers: "n_layers",
    num_attention_heads: "n_heads",
    num_key_value_heads: "n_kv_heads",
    max_position_embeddings: "max_sequence_length",
    vocab_size: "embedding_size",
    tie_word_embeddings: "weight_tying",
  },
  names: {
    "model.ff_out.": "lm_head.",
    ".att_proj.": ".self_attn.qkv_proj.",
    ".attn_out.": ".self_attn.o_proj.",
    ".ff_proj.": ".mlp.gate_up_proj.",
    ".ff_out.": ".mlp.down_proj.",
  },
  design: ({ hidden_size: dims, intermediate_size, clip_qkv, mlp_hidden_size }, weights) => {
    const hidden = mlp_hidden_size ? mlp_hidden_size / 2 : intermediate_size;
    return {
      config: { rms_norm_eps: 1e-5 },
      isLayerNorm: true,
      qkvLimit: clip_qkv,
      hidden,
      arrangeMlp: (name) => {
        const both = `${name}.gate_up_proj`;
        if (!weights.matrices.has(both)) return;
        // Swaps gate and up: the file has up first.
        weights.matrices.check(both, [2 * hidden, dims]);
        const halves = [hidden, 0].map((first) => ({ first, count: hidden }));
        weights.matrices.reorder(both, halves);
      },
    };
  },
});
