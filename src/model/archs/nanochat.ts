// nanochat: norms without weights, also on queries and keys, squared ReLU, and a soft cap on the logits.
import { z } from "zod";
import { squaredRelu } from "../activations.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { plainMlp, plainNorm, softCap } from "../layers.ts";
import type { Model } from "../model.ts";
import { backwards, makeRope, ropeOptions } from "../rope.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rms_norm_eps: z.number().positive().default(1e-5),
  final_logit_softcapping: z.number().positive().default(15),
});

export function nanochat(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = parsed;
  weights.renameParts({
    "transformer.h.": "model.layers.",
    "transformer.wte.": "model.embed_tokens.",
    ".attn.c_q.": ".self_attn.q_proj.",
    ".attn.c_k.": ".self_attn.k_proj.",
    ".attn.c_v.": ".self_attn.v_proj.",
    ".attn.c_proj.": ".self_attn.o_proj.",
    ".mlp.c_fc.": ".mlp.up_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
    ".mlp.fc1.": ".mlp.up_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
  });
  const norm = plainNorm(weights, dims, eps);
  // It comes behind RoPE, which changes no head's length: it may as well come before.
  const { headDim } = headsOf(parsed);
  const headNorm = plainNorm(weights, headDim, eps);
  const rope = backwards(weights, makeRope(weights, ropeOptions(parsed, headDim)));
  return transformer(parsed, weights, {
    makeNorm: () => norm,
    rope: () => rope,
    parts: () => ({ qNorm: headNorm, kNorm: headNorm }),
    mlp: (name) => plainMlp(weights, name, dims, intermediate_size, squaredRelu),
    afterEmbedding: norm,
    afterLogits: (logits) => softCap(logits, parsed.final_logit_softcapping),
  });
}
