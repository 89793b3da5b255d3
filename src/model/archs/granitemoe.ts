// Granite 3 with experts.
import { headsOf, parseConfig } from "../config.ts";
import { attentionBlock } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";
import { graniteDecoder } from "./granite.ts";
import { GraniteExpertsConfig, graniteExperts } from "./granitemoehybrid.ts";

export function graniteMoe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(GraniteExpertsConfig, config);
  const sizes = { dims: parsed.hidden_size, ...headsOf(parsed) };
  const rope = makeRope(weights, ropeOptions(parsed, sizes.headDim));
  const attention = { scale: parsed.attention_multiplier };
  return graniteDecoder(parsed, weights, (name, _, states) => ({
    mix: attentionBlock(weights, `${name}.self_attn`, states, sizes, { rope, attention }),
    mlp: graniteExperts(parsed, weights, `${name}.block_sparse_moe`),
  }));
}
