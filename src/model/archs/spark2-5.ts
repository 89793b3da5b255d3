// Spark 2.5: a window with its own RoPE in three of four layers, and a gate on each head's output.
import { z } from "zod";
import { astype, sigmoid } from "../../mlx/ops.ts";
import { count, LayerRope, word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { gatingOf } from "../layers/activations.ts";

export const spark25 = family({
  config: {
    sliding_window: count,
    sliding_rope: LayerRope,
    hidden_act: word.default("gelu"),
    gate_attn_act_mode: z.literal("sigmoid").default("sigmoid"),
    headwise_attn_output_gate: z.literal(true).default(true),
  },
  design: ({ hidden_act }) => ({
    slides: (layer) => (layer + 1) % 4 !== 0,
    outputGate: { name: "g_proj", isPerHead: true, open: (x) => sigmoid(astype(x, "float32")) },
    gating: gatingOf(hidden_act, "hidden_act"),
  }),
});
