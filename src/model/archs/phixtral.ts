// Phixtral: Phi 2 with experts, in parallel to attention.
import { count } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { activationOf } from "../layers/activations.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";

export const phixtral = family({
  config: { rotary_dim: count.default(32), ...expertKeys },
  defaults: {
    vocab_size: 51_200,
    hidden_size: 2560,
    num_attention_heads: 32,
    num_hidden_layers: 32,
    max_position_embeddings: 2048,
    num_experts_per_tok: 2,
    n_routed_experts: 4,
  },
  keys: {
    vocab_size: "num_vocab",
    hidden_size: "model_dim",
    num_attention_heads: "num_heads",
    num_hidden_layers: "num_layers",
    max_position_embeddings: "n_positions",
    n_routed_experts: "num_local_experts",
  },
  names: {
    "lm_head.ln.": "model.norm.",
    ".mixer.Wqkv.": ".self_attn.qkv_proj.",
    ".mixer.out_proj.": ".self_attn.o_proj.",
    ".ln.": ".input_layernorm.",
    ".moe.mlp.": ".mlp.experts.",
    ".moe.": ".mlp.",
    "lm_head.linear.": "lm_head.",
    ".fc1.": ".up_proj.",
    ".fc2.": ".down_proj.",
  },
  design: (config) => ({
    config: { rms_norm_eps: 1e-5, tie_word_embeddings: false },
    isParallel: true,
    isLayerNorm: true,
    norms: { attention: "input_layernorm" },
    rotaryDims: config.rotary_dim,
    experts: expertsOf(config, {
      hidden: 4 * config.hidden_size,
      activation: activationOf("gelu_new", "activation_function"),
    }),
  }),
});
