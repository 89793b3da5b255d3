// GLM 4.7 Flash: DeepSeek V3 in other sizes.
import { family } from "../design/family.ts";
import { latentLayers } from "../layers/latent-layers.ts";
import { deepseekV3 } from "./deepseek-v3.ts";

export const glm4MoeLite = family({
  like: deepseekV3,
  defaults: {
    rms_norm_eps: 1e-5,
    rope_theta: 1_000_000,
    routed_scaling_factor: 1.8,
    first_k_dense_replace: 1,
  },
  design: (config, weights) => ({
    mix: latentLayers(config, weights, { eps: config.rms_norm_eps }),
  }),
});
