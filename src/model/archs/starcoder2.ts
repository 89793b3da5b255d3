// StarCoder 2: layer norms, a plain MLP, biases everywhere, and a window.
import { z } from "zod";
import { activationOf } from "../activations.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { layerNorm, plainMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rms_norm_eps: z.number().positive().default(1e-5),
  rope_theta: z.number().positive().default(100_000),
  hidden_act: z.string().default("gelu_pytorch_tanh"),
});

export function starcoder2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, { rms_norm_eps: "norm_epsilon" });
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = parsed;
  const activation = activationOf(parsed.hidden_act, "hidden_act");
  weights.renameParts({ ".mlp.c_fc.": ".mlp.up_proj.", ".mlp.c_proj.": ".mlp.down_proj." });
  return transformer(parsed, weights, {
    slides: () => true,
    makeNorm: (name) => layerNorm(weights, name, dims, eps),
    mlp: (name) => plainMlp(weights, name, dims, intermediate_size, activation),
  });
}
