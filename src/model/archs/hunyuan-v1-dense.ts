// Hunyuan's dense models: norms on queries and keys, behind RoPE.
import { z } from "zod";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { makeRope } from "../rope.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  use_qk_norm: z.boolean().default(true),
  rope_scaling: z.looseObject({ alpha: z.number().positive().optional() }).nullish(),
});

export function hunyuanV1Dense(config: unknown, weights: Weights): Model {
  const { rope_scaling, use_qk_norm, ...parsed } = parseConfig(Config, config);
  const { headDim: dims } = headsOf(parsed);
  // Contexts are longer by a larger base.
  const base = parsed.rope_theta * (rope_scaling?.alpha ?? 1) ** (dims / (dims - 2));
  const rope = makeRope(weights, { dims, base });
  return transformer(parsed, weights, {
    rope: () => rope,
    rotatesFirst: use_qk_norm,
    headNorms: use_qk_norm ? ["query_layernorm", "key_layernorm"] : undefined,
  });
}
