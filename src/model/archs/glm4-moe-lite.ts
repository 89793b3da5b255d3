// GLM 4.7 Flash: DeepSeek V3 in other sizes.
import { z } from "zod";
import { positive } from "../config.ts";
import { correctedScores, expertsOf } from "../expert-design.ts";
import { family } from "../family.ts";
import { latentLayers } from "../latent-layers.ts";
import { deepseekConfig } from "./deepseek-v2.ts";

export const glm4MoeLite = family({
  config: {
    ...deepseekConfig,
    rms_norm_eps: positive.default(1e-5),
    rope_theta: positive.default(1_000_000),
    routed_scaling_factor: positive.default(1.8),
    first_k_dense_replace: z.int().default(1),
  },
  design: (config, weights) => ({
    mix: latentLayers(config, weights, { eps: config.rms_norm_eps }),
    experts: expertsOf(config, correctedScores),
    hasLayersBehind: true,
  }),
});
