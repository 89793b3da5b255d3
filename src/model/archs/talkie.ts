// Talkie: norms without weights, a learned factor on each branch and each head of queries, and in each layer the
// embedding once more.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { add, multiply, reshape } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { changedHeads } from "../head-changes.ts";
import { attentionBlock, gatedMlp, plainNorm, projection } from "../layers.ts";
import type { Model } from "../model.ts";
import { backwards, makeRope, ropeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rope_theta: z.number().positive().default(1_000_000),
  rms_norm_eps: z
    .number()
    .positive()
    .default(2 ** -23),
  /** In GGUF files half of the rows of queries and keys have the other sign, so that RoPE rotates as usual. */
  rotates_forwards: z.boolean().default(false),
  /** What other files have as a tensor. */
  logit_gain: z.number().nullish(),
});

export function talkie(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = parsed;
  const sizes = { dims, ...headsOf(parsed) };
  const { heads, headDim } = sizes;
  weights.leaveOut(/rotary|(cos|sin)$/);
  weights.rename({ lm_head_gain: "model.lm_head_gain" });
  weights.renameParts({
    "model.embed.": "model.embed_tokens.",
    "model.blocks.": "model.layers.",
    ".attn.attn_query.": ".self_attn.q_proj.",
    ".attn.attn_key.": ".self_attn.k_proj.",
    ".attn.attn_value.": ".self_attn.v_proj.",
    ".attn.attn_resid.": ".self_attn.o_proj.",
    ".mlp.mlp_gate.": ".mlp.gate_proj.",
    ".mlp.mlp_linear.": ".mlp.up_proj.",
    ".mlp.mlp_resid.": ".mlp.down_proj.",
  });
  if (weights.has("lm_head")) weights.rename({ lm_head: "lm_head.weight" });
  const norm = plainNorm(weights, dims, eps);
  const headNorm = plainNorm(weights, headDim, eps);
  const forwards = makeRope(weights, ropeOptions(parsed, headDim));
  const rope = parsed.rotates_forwards ? forwards : backwards(weights, forwards);
  const gain = (name: string) => weights.tensor(name, [1]);
  const logitGain =
    parsed.logit_gain == null ? gain("model.lm_head_gain.w_g") : weights.number(parsed.logit_gain);
  return decoder(
    { ...parsed, tie_word_embeddings: false },
    weights,
    (name, _, states) => {
      const gains = `${name}.attn.head_gain.head_g`;
      if (weights.shapeOf(gains)?.length === 2) weights.reshape(gains, [heads, 1], [heads]);
      const stored = weights.tensor(gains, [heads]);
      const headGain = weights.computed(() => reshape(stored, [heads, 1]));
      const attend = attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        // Norms come behind RoPE, which changes no head's length: they may as well come before.
        project: changedHeads(
          projection(weights, `${name}.self_attn`, sizes),
          sizes,
          ({ q, k }) => ({ q: multiply(headNorm(q), headGain), k: headNorm(k) }),
        ),
        rope,
        attention: { scale: headDim ** -0.5 },
      });
      const mlp = gatedMlp(weights, `${name}.mlp`, dims, intermediate_size);
      const [attentionGain, mlpGain, skip] = ["attn_gain", "mlp_gain", "embed_skip"].map((part) =>
        gain(`${name}.${part}.a_g`),
      ) as [MlxArray, MlxArray, MlxArray];
      return (x, step, embedded) => {
        const h = add(x, multiply(attend(x, step, { norm }), attentionGain));
        const made = add(h, multiply(mlp(h, { norm }), mlpGain));
        return add(made, multiply(embedded!, skip));
      };
    },
    {
      norm,
      afterEmbedding: norm,
      afterLogits: (logits) => multiply(logits, logitGain),
      layerInputs: (_, embedded) => Array(parsed.num_hidden_layers).fill(embedded),
    },
  );
}
