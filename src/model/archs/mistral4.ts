// Mistral 4: DeepSeek's latent attention with queries scaled by position, and softmax routing.
import { z } from "zod";
import { count, positive, RopeScaling, real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertsOf } from "../layers/expert-design.ts";
import { temperature } from "../layers/head-changes.ts";
import { latentLayers } from "../layers/latent-layers.ts";
import { deepseekV2 } from "./deepseek-v2.ts";

export const mistral4 = family({
  like: deepseekV2,
  config: {
    rope_interleave: z.literal(true).nullish(),
    rope_theta: positive.default(100_000),
    rope_scaling: RopeScaling.extend({
      llama_4_scaling_beta: real,
      original_max_position_embeddings: count,
    }),
  },
  design: (config, weights) => {
    const { llama_4_scaling_beta: beta, original_max_position_embeddings: every } =
      config.rope_scaling;
    return {
      mix: latentLayers(config, weights, {
        queryScale: temperature({ scale: beta, every, first: 0 }),
      }),
      experts: expertsOf(config),
    };
  },
});
