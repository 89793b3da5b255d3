// GLM 4 0414: GLM with half of each head rotated, and norms behind attention and MLP, too.
import { parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { GlmConfig } from "./glm.ts";

export function glm4(config: unknown, weights: Weights): Model {
  return transformer(parseConfig(GlmConfig, config), weights, {
    rotatesNeighbours: true,
    norms: {
      attention: "input_layernorm",
      afterAttention: "post_self_attn_layernorm",
      mlp: "post_attention_layernorm",
      afterMlp: "post_mlp_layernorm",
    },
  });
}
