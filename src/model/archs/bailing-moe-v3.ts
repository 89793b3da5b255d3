// Ling 3: a delta net with a decay for each feature in most layers, latent attention with a gate in the others.
import { z } from "zod";
import { add, astype, exp, multiply, sigmoid } from "../../mlx/ops.ts";
import { parseConfig } from "../config.ts";
import { deltaAttention, featureRates } from "../delta-attention.ts";
import type { Model } from "../model.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";
import { BailingConfig, bailingDecoder } from "./bailing-moe.ts";
import { isGlobal } from "./bailing-moe-linear.ts";
import { deepseekAttention } from "./deepseek-v2.ts";

const count = z.int().positive();

export const latentKeys = {
  q_lora_rank: count.nullish(),
  kv_lora_rank: count,
  qk_rope_head_dim: count,
  qk_nope_head_dim: count,
  v_head_dim: count,
  rope_interleave: z.literal(true).default(true),
};

const Config = BailingConfig.extend({
  ...latentKeys,
  layer_group_size: count,
  head_dim: count,
  short_conv_kernel_size: count.default(4),
  /** Of the logarithm of a decay. */
  kda_lower_bound: z.number().negative().default(-5),
  kda_safe_gate: z.literal(true).default(true),
  no_kda_lora: z.literal(true).default(true),
  score_function: z.literal("sigmoid").default("sigmoid"),
  moe_router_enable_expert_bias: z.literal(true).default(true),
  routed_scaling_factor: z.number().default(2.5),
  n_group: count.default(8),
  topk_group: count.default(4),
  num_shared_experts: z.int().default(1),
});
type Config = z.infer<typeof Config>;

export function bailingMoeV3(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, num_attention_heads: heads } = parsed;
  const latent = deepseekAttention(parsed, weights, parsed.rms_norm_eps);
  return bailingDecoder(parsed, weights, (name, layer, states) => {
    if (!isGlobal(parsed, layer)) return deltaLayer(parsed, weights, name, states);
    const open = weights.linear(`${name}.g_proj`, dims, heads);
    return latent(name, states, { gate: (x) => sigmoid(open(x)) });
  });
}

function deltaLayer(config: Config, weights: Weights, name: string, states: LayerStates) {
  const { hidden_size: dims, num_attention_heads: heads, head_dim: headDim } = config;
  const { kda_lower_bound: least, rms_norm_eps: eps, short_conv_kernel_size: taps } = config;
  const width = heads * headDim;
  const sizes = { dims, heads, headDim, taps };
  const steps = weights.linear(`${name}.f_proj`, dims, width);
  const betas = weights.linear(`${name}.b_proj`, dims, heads);
  const open = weights.linear(`${name}.g_proj`, dims, width);
  const { rate, bias } = featureRates(weights, name, sizes);
  return deltaAttention(weights, name, states, sizes, eps, (x) => {
    const size = sigmoid(multiply(add(astype(steps(x), "float32"), bias), rate));
    return { decays: exp(multiply(size, least)), betas: betas(x), open: open(x) };
  });
}
