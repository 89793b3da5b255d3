// Youtu LLM: DeepSeek V2's latent attention, without experts.
import { family } from "../design/family.ts";
import { latentLayers } from "../layers/latent-layers.ts";
import { deepseekV2 } from "./deepseek-v2.ts";

export const youtuLlm = family({
  like: deepseekV2,
  defaults: { rope_theta: 1_600_000, tie_word_embeddings: true },
  design: (config, weights) => ({
    mix: latentLayers(config, weights, { eps: config.rms_norm_eps }),
    experts: undefined,
  }),
});
