// Gemma 2: norms before and behind attention and MLP, soft caps, and a window in every other layer.
import { z } from "zod";
import { add, multiply } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig, windowOf } from "../config.ts";
import { decoder } from "../decoder.ts";
import { attentionBlock, gatedMlp, rmsNorm, softCap } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  /** null for none. */
  attn_logit_softcapping: z.number().positive().nullable().default(50),
  final_logit_softcapping: z.number().positive().nullable().default(30),
  query_pre_attn_scalar: z.number().positive().optional(),
  /** GGUF files keep norms as they are used: their configuration says 0. */
  norm_offset: z.number().default(1),
});

export function gemma2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = parsed;
  const { attn_logit_softcapping, final_logit_softcapping, query_pre_attn_scalar } = parsed;
  const sizes = { dims, ...headsOf(parsed) };
  const rope = makeRope(weights, ropeOptions(parsed, sizes.headDim));
  const makeNorm = (name: string) => rmsNorm(weights, name, dims, eps, parsed.norm_offset);
  return decoder(
    parsed,
    weights,
    (name, layer, states) => {
      const attend = attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope,
        attention: {
          scale: (query_pre_attn_scalar ?? sizes.headDim) ** -0.5,
          softcap: attn_logit_softcapping ?? undefined,
          window: windowOf(parsed, layer, (at) => at % 2 === 0),
        },
      });
      const mlp = gatedMlp(weights, `${name}.mlp`, dims, intermediate_size, "geglu");
      const inputNorm = makeNorm(`${name}.input_layernorm`);
      const postAttentionNorm = makeNorm(`${name}.post_attention_layernorm`);
      const preMlpNorm = makeNorm(`${name}.pre_feedforward_layernorm`);
      const postMlpNorm = makeNorm(`${name}.post_feedforward_layernorm`);
      return (x, step) => {
        const h = add(x, postAttentionNorm(attend(inputNorm(x), step)));
        return add(h, postMlpNorm(mlp(preMlpNorm(h))));
      };
    },
    {
      norm: makeNorm("model.norm"),
      afterEmbedding: (h) => multiply(h, dims ** 0.5),
      afterLogits: (logits) =>
        final_logit_softcapping === null ? logits : softCap(logits, final_logit_softcapping),
    },
  );
}
