// OLMo 1: layer norms without weights, and in some models limits to queries, keys and values.
import { z } from "zod";
import { clip } from "../../mlx/ops.ts";
import { BaseConfig, type Keys, parseConfig } from "../config.ts";
import { gatedMlp, layerNorm, projection } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  clip_qkv: z.number().positive().nullish(),
  /** Of both halves of an MLP, in configurations of the authors' own code. */
  mlp_hidden_size: z.int().positive().nullish(),
});

/** Of all norms. */
const EPS = 1e-5;

/** As the authors' own code writes it, and not transformers. */
const ownKeys: Keys = {
  hidden_size: "d_model",
  num_hidden_layers: "n_layers",
  num_attention_heads: "n_heads",
  num_key_value_heads: "n_kv_heads",
  max_position_embeddings: "max_sequence_length",
  vocab_size: "embedding_size",
  tie_word_embeddings: "weight_tying",
};

export function olmo(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, ownKeys);
  const { hidden_size: dims, clip_qkv, mlp_hidden_size } = parsed;
  const hidden = mlp_hidden_size ? mlp_hidden_size / 2 : parsed.intermediate_size;
  weights.rename({ "model.transformer.ff_out.": "lm_head." });
  weights.renameParts({
    "model.transformer.blocks.": "model.layers.",
    "model.transformer.wte.": "model.embed_tokens.",
    ".att_proj.": ".self_attn.qkv_proj.",
    ".attn_out.": ".self_attn.o_proj.",
    ".ff_proj.": ".mlp.gate_up_proj.",
    ".ff_out.": ".mlp.down_proj.",
  });
  return transformer(parsed, weights, {
    makeNorm: (name) => layerNorm(weights, name, dims, EPS),
    parts: (name, sizes) => {
      const project = projection(weights, name, sizes);
      if (!clip_qkv) return { project };
      return { project: (x, fused) => clip(project(x, fused), -clip_qkv, clip_qkv) };
    },
    mlp: (name) => {
      const both = `${name}.gate_up_proj`;
      if (weights.has(`${both}.weight`)) {
        // The second half is the gate.
        weights.check(both, [2 * hidden, dims]);
        weights.reorder(
          both,
          [hidden, 0].map((first) => ({ first, count: hidden })),
        );
      }
      return gatedMlp(weights, name, dims, hidden);
    },
  });
}
