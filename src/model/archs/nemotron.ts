// Nemotron 3 and 4, Minitron: layer norms stored as weight - 1, an MLP without a gate and with squared ReLU.

import { word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { activationOf } from "../layers/activations.ts";

export const nemotron = family({
  config: { hidden_act: word.default("relu2") },
  defaults: { rms_norm_eps: 1e-5, partial_rotary_factor: 0.5 },
  keys: { rms_norm_eps: "norm_eps" },
  design: ({ hidden_act }) => ({
    isLayerNorm: true,
    normOffset: 1,
    activation: activationOf(hidden_act, "hidden_act"),
  }),
});
