// Phixtral: Phi 2 with experts. Attention and experts are beside each other.
import { z } from "zod";
import { activationOf } from "../activations.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { router, stackExperts } from "../experts.ts";
import { layerNorm, ungatedExpertMlps } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope } from "../rope.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = z.looseObject({
  model_type: z.string(),
  num_vocab: count.default(51_200),
  model_dim: count.default(2560),
  num_heads: count.default(32),
  num_layers: count.default(32),
  rotary_dim: count.default(32),
  num_experts_per_tok: count.default(2),
  num_local_experts: count.default(4),
  n_positions: count.default(2048),
});

export function phixtral(config: unknown, weights: Weights): Model {
  const given = parseConfig(Config, config);
  const { model_dim: dims, num_local_experts: experts } = given;
  const parsed = parseConfig(BaseConfig, {
    model_type: given.model_type,
    vocab_size: given.num_vocab,
    hidden_size: dims,
    num_hidden_layers: given.num_layers,
    num_attention_heads: given.num_heads,
    max_position_embeddings: given.n_positions,
    tie_word_embeddings: false,
  });
  weights.renameParts({
    "lm_head.ln.": "model.norm.",
    "transformer.embd.wte.": "model.embed_tokens.",
    "transformer.h.": "model.layers.",
    ".mixer.Wqkv.": ".self_attn.qkv_proj.",
    ".mixer.out_proj.": ".self_attn.o_proj.",
    ".ln.": ".input_layernorm.",
    ".moe.mlp.": ".mlp.experts.",
    ".moe.": ".mlp.",
    "lm_head.linear.": "lm_head.",
    ".fc1.": ".up_proj.",
    ".fc2.": ".down_proj.",
  });
  const rope = makeRope(weights, { dims: given.rotary_dim, base: 10_000 });
  const gelu = activationOf("gelu_new", "activation_function");
  return transformer(parsed, weights, {
    makeNorm: (name) => layerNorm(weights, name, dims, 1e-5),
    norms: { attention: "input_layernorm" },
    isParallel: true,
    rope: () => rope,
    mlp: (name) => {
      stackExperts(weights, name, experts, { up_proj: "up_proj", down_proj: "down_proj" });
      const sizes = { experts, dims, hidden: 4 * dims };
      const mlps = ungatedExpertMlps(weights, `${name}.switch_mlp`, sizes, gelu);
      const route = router(weights, `${name}.gate`, sizes, {
        each: given.num_experts_per_tok,
        scores: "softmax",
        isNormalized: true,
        scale: 1,
      });
      return (input, { norm, residual } = {}) => {
        const x = norm ? norm(input) : input;
        const { chosen, shares } = route(x);
        return weights.device.combine(mlps(x, chosen), shares, residual);
      };
    },
  });
}
