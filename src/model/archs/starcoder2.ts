// StarCoder 2: layer norms, a plain MLP, biases everywhere, and a window.
import { z } from "zod";
import { activationOf } from "../activations.ts";
import { positive } from "../config.ts";
import { family } from "../family.ts";

export const starcoder2 = family({
  config: {
    rms_norm_eps: positive.default(1e-5),
    rope_theta: positive.default(100_000),
    hidden_act: z.string().default("gelu_pytorch_tanh"),
  },
  keys: { rms_norm_eps: "norm_epsilon" },
  names: { ".mlp.c_fc.": ".mlp.up_proj.", ".mlp.c_proj.": ".mlp.down_proj." },
  design: ({ hidden_act }) => ({
    isLayerNorm: true,
    slides: () => true,
    activation: activationOf(hidden_act, "hidden_act"),
  }),
});
