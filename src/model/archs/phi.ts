// Phi 1, 1.5 and 2: attention and MLP beside each other behind one layer norm, and biases everywhere.

import { z } from "zod";
import { word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { activationOf } from "../layers/activations.ts";

export const phi = family({
  config: {
    hidden_act: word.default("gelu_new"),
    /** Norms of queries and keys, which none of them has. */
    qk_layernorm: z.literal(false).default(false),
  },
  defaults: { rms_norm_eps: 1e-5, partial_rotary_factor: 0.5 },
  keys: { rms_norm_eps: "layer_norm_eps" },
  design: ({ hidden_act }) => ({
    isParallel: true,
    isLayerNorm: true,
    norms: { attention: "input_layernorm" },
    activation: activationOf(hidden_act, "hidden_act"),
  }),
});
