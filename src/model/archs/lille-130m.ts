// Lille 130M: Llama whose neighbouring features rotate together, under other names.
import { z } from "zod";
import { BaseConfig, parseConfig } from "../config.ts";
import { gatedMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({ tie_word_embeddings: z.boolean().default(true) });

export function lille130m(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, {
    hidden_size: "n_embd",
    num_hidden_layers: "n_layer",
    num_attention_heads: "n_head",
    num_key_value_heads: "n_kv_heads",
    max_position_embeddings: "block_size",
    rms_norm_eps: "layer_norm_eps",
  });
  const { hidden_size: dims } = parsed;
  weights.leaveOut(/rotary_emb/);
  weights.renameParts({
    "transformer.tok_embeddings.": "model.embed_tokens.",
    "transformer.": "model.",
    ".attention.norm.": ".input_layernorm.",
    ".attention.out_proj.": ".self_attn.o_proj.",
    ".attention.": ".self_attn.",
    ".feed_forward.norm.": ".post_attention_layernorm.",
    ".feed_forward.": ".mlp.",
  });
  // Eight thirds of it, to the nearest multiple of 256.
  const hidden = 256 * Math.round(Math.floor((8 * dims) / 3) / 256);
  return transformer(parsed, weights, {
    rotatesNeighbours: true,
    mlp: (name) => gatedMlp(weights, name, dims, hidden),
  });
}
