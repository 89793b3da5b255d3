// DeepSeek V2 and Coder V2: latent attention; softmax routing, limited to the expert groups with the highest scores.
import { word } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { expertKeys, expertsOf } from "../layers/expert-design.ts";
import { latentKeys, latentLayers } from "../layers/latent-layers.ts";

export const deepseekV2 = family({
  config: { ...expertKeys, ...latentKeys, topk_method: word.default("greedy") },
  defaults: {
    moe_intermediate_size: 1407,
    kv_lora_rank: 512,
    qk_rope_head_dim: 64,
    qk_nope_head_dim: 128,
    v_head_dim: 128,
  },
  design: (config, weights) => {
    const { n_group, topk_group, topk_method } = config;
    const isGrouped = topk_method === "group_limited_greedy" && n_group && topk_group;
    return {
      mix: latentLayers(config, weights),
      experts: expertsOf(config, {
        groups: isGrouped ? { count: n_group, kept: topk_group, best: 1 } : undefined,
        isNormalized: false,
      }),
      hasLayersBehind: true,
    };
  },
});
