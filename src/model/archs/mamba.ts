// Mamba and Falcon Mamba: recurrent layers and nothing else.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { rmsNorm } from "../layers.ts";
import { mambaMixer } from "../mamba-layers.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";
import { nameBackbone } from "./mamba2.ts";

const count = z.int().positive();

const Config = BaseConfig.omit({ num_attention_heads: true }).extend({
  intermediate_size: count,
  state_size: count,
  conv_kernel: count,
  time_step_rank: z.union([count, z.literal("auto")]),
  layer_norm_epsilon: z.number().positive().default(1e-5),
  use_bcdt_rms: z.boolean().default(false),
  mixer_rms_eps: z.number().positive().default(1e-6),
  tie_word_embeddings: z.boolean().default(true),
  max_position_embeddings: count.default(1_048_576),
});

export function mamba(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, time_step_rank, layer_norm_epsilon: eps, mixer_rms_eps } = parsed;
  const sizes = {
    dims,
    channels: parsed.intermediate_size,
    stateSize: parsed.state_size,
    rank: time_step_rank === "auto" ? Math.ceil(dims / 16) : time_step_rank,
    taps: parsed.conv_kernel,
  };
  const isNormed = parsed.use_bcdt_rms || parsed.model_type === "falcon_mamba";
  const plain = (x: MlxArray) => weights.device.rmsNorm(x, undefined, mixer_rms_eps);
  const norms = isNormed ? { steps: plain, keys: plain, queries: plain } : undefined;
  nameBackbone(weights);
  return decoder({ ...parsed, rms_norm_eps: eps }, weights, (name, _, states) => {
    const mix = mambaMixer(weights, `${name}.mixer`, states, sizes, norms);
    const norm = rmsNorm(weights, `${name}.norm`, dims, eps);
    return (x, step) => mix(x, step, { norm, residual: x });
  });
}
