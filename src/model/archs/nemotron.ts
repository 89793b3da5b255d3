// Nemotron 3 and 4, Minitron: layer norms stored as their distance from 1, a plain MLP with squared ReLU.
import { z } from "zod";
import { activationOf } from "../activations.ts";
import { positive, share } from "../config.ts";
import { family } from "../family.ts";

export const nemotron = family({
  config: {
    rms_norm_eps: positive.default(1e-5),
    partial_rotary_factor: share.default(0.5),
    hidden_act: z.string().default("relu2"),
  },
  keys: { rms_norm_eps: "norm_eps" },
  design: ({ hidden_act }) => ({
    isLayerNorm: true,
    normOffset: 1,
    activation: activationOf(hidden_act, "hidden_act"),
  }),
});
