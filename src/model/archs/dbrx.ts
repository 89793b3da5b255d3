// DBRX: layer norms without biases, queries, keys and values within limits, and experts in every layer.
import { z } from "zod";
import { clip } from "../../mlx/ops.ts";
import { transposed } from "../arrangement.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { routedMlp, stackExperts } from "../experts.ts";
import { layerNorm, projection } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = z
  .looseObject({
    model_type: z.string(),
    vocab_size: count,
    d_model: count,
    n_layers: count,
    n_heads: count,
    max_seq_len: count.default(2048),
    attn_config: z.looseObject({
      kv_n_heads: count,
      clip_qkv: z.number().positive().nullish(),
      rope_theta: z.number().positive().default(10_000),
    }),
    ffn_config: z.looseObject({
      ffn_hidden_size: count,
      moe_num_experts: count,
      moe_top_k: count,
    }),
  })
  .transform(({ attn_config, ffn_config, ...rest }) => ({ ...rest, attn_config, ffn_config }));

export function dbrx(config: unknown, weights: Weights): Model {
  const { attn_config, ffn_config, ...given } = parseConfig(Config, config);
  const { d_model: dims } = given;
  const { moe_num_experts: experts, ffn_hidden_size: hidden } = ffn_config;
  const parsed = parseConfig(BaseConfig, {
    model_type: given.model_type,
    vocab_size: given.vocab_size,
    hidden_size: dims,
    num_hidden_layers: given.n_layers,
    num_attention_heads: given.n_heads,
    num_key_value_heads: attn_config.kv_n_heads,
    rope_theta: attn_config.rope_theta,
    max_position_embeddings: given.max_seq_len,
    tie_word_embeddings: false,
  });
  const limit = attn_config.clip_qkv;
  weights.renameParts({
    "transformer.wte.": "model.embed_tokens.",
    "transformer.norm_f.": "model.norm.",
    "transformer.blocks.": "model.layers.",
    ".norm_attn_norm.norm_1.": ".input_layernorm.",
    ".norm_attn_norm.norm_2.": ".post_attention_layernorm.",
    ".norm_attn_norm.attn.": ".self_attn.",
    ".self_attn.Wqkv.": ".self_attn.qkv_proj.",
    ".self_attn.out_proj.": ".self_attn.o_proj.",
    ".ffn.": ".mlp.",
    ".mlp.router.layer.": ".mlp.gate.",
  });
  const routing = {
    each: ffn_config.moe_top_k,
    scores: "softmax" as const,
    isNormalized: true,
    scale: 1,
  };
  return transformer(parsed, weights, {
    makeNorm: (name) => layerNorm(weights, name, dims, 1e-5),
    parts: (name, sizes) => {
      const project = projection(weights, name, sizes);
      if (limit == null) return { project };
      return { project: (x, fused) => clip(project(x, fused), -limit, limit) };
    },
    mlp: (name) => {
      arrangeExperts(weights, name, { experts, dims, hidden });
      return routedMlp(weights, name, { experts, dims, hidden }, routing);
    },
  });
}

/** The authors' files have the rows of all experts below each other, and what goes down transposed. */
function arrangeExperts(
  weights: Weights,
  name: string,
  { experts, dims, hidden }: { experts: number; dims: number; hidden: number },
): void {
  const names = { gate_proj: "w1", up_proj: "v1", down_proj: "w2" };
  stackExperts(weights, name, experts, names);
  for (const [part, stored] of Object.entries(names)) {
    const source = `${name}.experts.mlp.${stored}`;
    if (!weights.has(source)) continue;
    const target = `${name}.switch_mlp.${part}.weight`;
    weights.arrange([source], ([tensor]) => {
      const apart = { ...tensor!, name: target, shape: [experts, hidden, dims] };
      return part === "down_proj" ? transposed(target, apart, { first: 0, count: dims }) : apart;
    });
  }
}
