// Ling 3: a delta net with a decay per feature in most layers, gated latent attention in the others.
import { z } from "zod";
import { count, real } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";
import { deltaAttention } from "../layers/delta-attention.ts";
import { groupKeys, isGlobal } from "../layers/fading-attention.ts";
import { latentKeys, latentLayers } from "../layers/latent-layers.ts";
import { bailingMoe } from "./bailing-moe.ts";

export const bailingMoeV3 = family({
  like: bailingMoe,
  config: {
    ...latentKeys,
    ...groupKeys,
    rope_interleave: z.literal(true).default(true),
    head_dim: count,
    /** Head size of delta nets. head_dim does not give it: transformers saves the rotary size there. */
    linear_head_dim: count.nullish(),
    short_conv_kernel_size: count.default(4),
    /** Lower bound of the decays' logarithms: limits how much the state forgets per token. */
    kda_lower_bound: real.negative().default(-5),
    kda_safe_gate: z.literal(true).default(true),
    no_kda_lora: z.literal(true).default(true),
    score_function: z.literal("sigmoid").default("sigmoid"),
    moe_router_enable_expert_bias: z.literal(true).default(true),
  },
  defaults: { routed_scaling_factor: 2.5, n_group: 8, topk_group: 4, n_shared_experts: 1 },
  design: (config, weights) => {
    const { hidden_size: dims, num_attention_heads: heads, rms_norm_eps: eps } = config;
    const sizes = {
      dims,
      heads,
      headDim: config.linear_head_dim ?? config.head_dim,
      taps: config.short_conv_kernel_size,
    };
    const parts = { eps, least: config.kda_lower_bound };
    const outputGate = { name: "g_proj", isPerHead: true };
    const latent = latentLayers(config, weights, { eps, outputGate });
    return {
      mix: (name, layer, states) =>
        isGlobal(config, layer)
          ? latent(name, layer, states)
          : deltaAttention(weights, name, states, sizes, parts),
    };
  },
});
