// Hunyuan's dense models: norms on queries and keys, behind RoPE.
import { z } from "zod";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { makeRope } from "../rope.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Scaling = z.looseObject({
  alpha: z.number().positive().optional(),
  rope_theta: z.number().positive().optional(),
});

const Config = BaseConfig.extend({
  use_qk_norm: z.boolean().default(true),
  rope_scaling: Scaling.nullish(),
  rope_parameters: Scaling.nullish(),
});

export function hunyuanV1Dense(config: unknown, weights: Weights): Model {
  const { rope_scaling, rope_parameters, use_qk_norm, ...parsed } = parseConfig(Config, config);
  const { headDim: dims } = headsOf(parsed);
  // Contexts are longer by a larger base.
  const { alpha = 1 } = rope_scaling ?? rope_parameters ?? {};
  const { rope_theta: theta = parsed.rope_theta } = rope_parameters ?? {};
  const base = theta * alpha ** (dims / (dims - 2));
  const rope = makeRope(weights, { dims, base });
  return transformer(parsed, weights, {
    rope: () => rope,
    rotatesFirst: use_qk_norm,
    headNorms: use_qk_norm ? ["query_layernorm", "key_layernorm"] : undefined,
  });
}
