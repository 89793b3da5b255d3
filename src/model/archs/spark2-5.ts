// Spark 2.5: a window in three layers of four with positions of its own, and a gate on each head's output.
import { z } from "zod";
import { astype, expandDims, multiply, reshape, sigmoid } from "../../mlx/ops.ts";
import { gatingOf } from "../activations.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import type { Model } from "../model.ts";
import { makeRope } from "../rope.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Rope = z.looseObject({
  rope_theta: z.number().positive().default(10_000),
  partial_rotary_factor: z.number().positive().max(1).default(1),
});

const Config = BaseConfig.extend({
  sliding_window: z.int().positive(),
  rope_parameters: z.looseObject({ full_attention: Rope, sliding_attention: Rope }),
  hidden_act: z.string().default("gelu"),
  gate_attn_act_mode: z.literal("sigmoid").default("sigmoid"),
  headwise_attn_output_gate: z.literal(true).default(true),
});

export function spark25(config: unknown, weights: Weights): Model {
  const { rope_parameters, ...parsed } = parseConfig(Config, config);
  const { headDim } = headsOf(parsed);
  const makeOne = ({ rope_theta: base, partial_rotary_factor }: z.infer<typeof Rope>) =>
    makeRope(weights, { dims: 2 * Math.floor((headDim * partial_rotary_factor) / 2), base });
  const full = makeOne(rope_parameters.full_attention);
  const near = makeOne(rope_parameters.sliding_attention);
  weights.renameParts({
    "model.embedding.": "model.embed_tokens.",
    ".q_k_v_proj.": ".qkv_proj.",
    ".self_attn.out_proj.": ".self_attn.o_proj.",
  });
  return transformer(parsed, weights, {
    slides: (layer) => (layer + 1) % 4 !== 0,
    rope: (_, window) => (window === undefined ? full : near),
    gating: gatingOf(parsed.hidden_act, "hidden_act"),
    parts: (name, { dims, heads }) => {
      const gate = weights.linear(`${name}.g_proj`, dims, heads);
      return {
        afterwards: (attended, x, fused) => {
          const open = sigmoid(astype(gate(x, fused), "float32")); // (T, heads)
          const byHead = reshape(attended, [-1, heads, headDim]);
          const gated = multiply(byHead, astype(expandDims(open, 2), attended.dtype));
          return reshape(gated, [-1, heads * headDim]);
        },
      };
    },
  });
}
