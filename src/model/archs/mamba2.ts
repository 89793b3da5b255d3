// Mamba 2: recurrent layers and nothing else.
import { z } from "zod";
import { BaseConfig, parseConfig, StepLimits } from "../config.ts";
import { decoder } from "../decoder.ts";
import { rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { mamba2Mixer, normAfterGate } from "../recurrent-layers.ts";
import type { Weights } from "../weights.ts";

const Config = BaseConfig.omit({ num_attention_heads: true }).extend({
  num_heads: z.int().positive(),
  head_dim: z.int().positive(),
  state_size: z.int().positive(),
  ssm_state_size: z.int().positive().nullish(),
  conv_kernel: z.int().positive(),
  n_groups: z.int().positive(),
  layer_norm_epsilon: z.number().positive().default(1e-5),
  time_step_limit: StepLimits,
  max_position_embeddings: z.int().positive().default(2056),
});

export function mamba2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, num_heads: heads, head_dim: headDim } = parsed;
  const eps = parsed.layer_norm_epsilon;
  const sizes = {
    dims,
    heads,
    headDim,
    groups: parsed.n_groups,
    stateSize: parsed.ssm_state_size ?? parsed.state_size,
    taps: parsed.conv_kernel,
    limits: parsed.time_step_limit,
  };
  nameBackbone(weights);
  return decoder({ ...parsed, rms_norm_eps: eps }, weights, (name, _, states) => {
    const gatedNorm = normAfterGate(weights, `${name}.mixer.norm`, heads * headDim, eps);
    const mix = mamba2Mixer(weights, `${name}.mixer`, states, sizes, gatedNorm);
    const norm = rmsNorm(weights, `${name}.norm`, dims, 1e-5);
    return (x, step) => mix(x, step, { norm, residual: x });
  });
}

/** The names that other architectures have for the same. */
export function nameBackbone(weights: Weights): void {
  weights.rename({
    "backbone.embeddings.": "model.embed_tokens.",
    "backbone.embedding.": "model.embed_tokens.",
    "backbone.layers.": "model.layers.",
    "backbone.norm_f.": "model.norm.",
  });
}
