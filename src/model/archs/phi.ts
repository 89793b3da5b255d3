// Phi 1, 1.5 and 2: attention and MLP beside each other behind one layer norm, and biases everywhere.
import { z } from "zod";
import { activationOf } from "../activations.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { layerNorm, plainMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rms_norm_eps: z.number().positive().default(1e-5),
  partial_rotary_factor: z.number().positive().max(1).default(0.5),
  hidden_act: z.string().default("gelu_new"),
  /** Norms of queries and keys, which none of them has. */
  qk_layernorm: z.literal(false).default(false),
});

export function phi(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, { rms_norm_eps: "layer_norm_eps" });
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = parsed;
  const activation = activationOf(parsed.hidden_act, "hidden_act");
  weights.renameParts({
    "model.final_layernorm.": "model.norm.",
    ".self_attn.dense.": ".self_attn.o_proj.",
    ".mlp.fc1.": ".mlp.up_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
  });
  return transformer(parsed, weights, {
    isParallel: true,
    norms: { attention: "input_layernorm" },
    makeNorm: (name) => layerNorm(weights, name, dims, eps),
    mlp: (name) => plainMlp(weights, name, dims, intermediate_size, activation),
  });
}
