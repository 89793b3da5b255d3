// Nemotron 3 and 4, Minitron: layer norms stored as their distance from 1, a plain MLP with squared ReLU.
import { z } from "zod";
import { activationOf } from "../activations.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { layerNorm, plainMlp } from "../layers.ts";
import type { Model } from "../model.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.extend({
  rms_norm_eps: z.number().positive().default(1e-5),
  partial_rotary_factor: z.number().positive().max(1).default(0.5),
  hidden_act: z.string().default("relu2"),
  /** GGUF files keep norms as they are used: their configuration says 0. */
  norm_offset: z.number().default(1),
});

export function nemotron(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config, { rms_norm_eps: "norm_eps" });
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps, norm_offset } = parsed;
  const activation = activationOf(parsed.hidden_act, "hidden_act");
  return transformer(parsed, weights, {
    makeNorm: (name) => layerNorm(weights, name, dims, eps, norm_offset),
    mlp: (name) => plainMlp(weights, name, dims, intermediate_size, activation),
  });
}
