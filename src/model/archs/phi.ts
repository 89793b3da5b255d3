// Phi 1, 1.5 and 2: attention and MLP in parallel after one layer norm, and biases everywhere.

import { z } from "zod";
import { word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { activationOf } from "../layers/activations.ts";

export const phi = family({
  config: {
    hidden_act: word.default("gelu_new"),
    /** No published model has norms on queries and keys, so they are refused. */
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
