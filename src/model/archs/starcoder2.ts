// StarCoder 2: layer norms, an MLP without a gate, biases everywhere, and a window.

import { word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { activationOf } from "../layers/activations.ts";

export const starcoder2 = family({
  config: { hidden_act: word.default("gelu_pytorch_tanh") },
  defaults: { rms_norm_eps: 1e-5, rope_theta: 100_000 },
  keys: { rms_norm_eps: "norm_epsilon" },
  design: ({ hidden_act }) => ({
    isLayerNorm: true,
    slides: () => true,
    activation: activationOf(hidden_act, "hidden_act"),
  }),
});
