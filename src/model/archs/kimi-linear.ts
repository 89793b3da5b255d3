// Kimi Linear: a delta net with a decay for each feature in most layers, latent attention in the others, and experts.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { add, astype, exp, logAddExp, multiply, negative, split } from "../../mlx/ops.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { deltaAttention, featureRates } from "../delta-attention.ts";
import { routedMlp, stackExperts } from "../experts.ts";
import { latentAttention } from "../latent-layers.ts";
import { gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

export const KimiLinearConfig = BaseConfig.extend({
  linear_attn_config: z.looseObject({
    /** Those with a delta net; the first layer is 1. */
    kda_layers: z.array(count),
    num_heads: count,
    head_dim: count,
    short_conv_kernel_size: count.default(4),
  }),
  kv_lora_rank: count,
  qk_nope_head_dim: count,
  qk_rope_head_dim: count,
  v_head_dim: count,
  num_experts: z.int(),
  num_experts_per_token: count.default(1),
  num_shared_experts: z.int().default(0),
  moe_intermediate_size: count,
  moe_router_activation_func: z.enum(["sigmoid", "softmax"]).default("sigmoid"),
  moe_renormalize: z.boolean().default(true),
  routed_scaling_factor: z.number().default(1),
  first_k_dense_replace: z.int().default(0),
  moe_layer_freq: count.default(1),
  num_expert_group: count.default(1),
  topk_group: count.default(1),
  model_max_length: count.nullish(),
});
type Config = z.infer<typeof KimiLinearConfig>;

export function kimiLinear(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(KimiLinearConfig, config);
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = parsed;
  const { kda_layers } = parsed.linear_attn_config;
  // Its positions are in the delta nets: nothing is rotated.
  const scale = (parsed.qk_nope_head_dim + parsed.qk_rope_head_dim) ** -0.5;
  return decoder(
    {
      ...parsed,
      max_position_embeddings: parsed.max_position_embeddings ?? parsed.model_max_length,
    },
    weights,
    (name, layer, states) => {
      const mix = kda_layers.includes(layer + 1)
        ? deltaLayer(parsed, weights, `${name}.self_attn`, states)
        : latentAttention(weights, `${name}.self_attn`, states, latentSizes(parsed), {
            scale,
            eps,
          });
      const isSparse =
        parsed.num_experts > 0 &&
        layer >= parsed.first_k_dense_replace &&
        layer % parsed.moe_layer_freq === 0;
      weights.rename({ [`${name}.block_sparse_moe.`]: `${name}.mlp.` });
      return preNormBlock(
        mix,
        isSparse
          ? sparseMlp(parsed, weights, `${name}.mlp`)
          : gatedMlp(weights, `${name}.mlp`, dims, intermediate_size),
        rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
        rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
      );
    },
    { ignored: /^model\.mtp/ },
  );
}

export function latentSizes(config: Config) {
  return {
    dims: config.hidden_size,
    heads: config.num_attention_heads,
    queryRank: undefined,
    latent: config.kv_lora_rank,
    rotary: config.qk_rope_head_dim,
    plain: config.qk_nope_head_dim,
    value: config.v_head_dim,
  };
}

/** Decays and output gates are products of smaller vectors. */
function deltaLayer(config: Config, weights: Weights, name: string, states: LayerStates) {
  const { hidden_size: dims, linear_attn_config, rms_norm_eps: eps } = config;
  const { num_heads: heads, head_dim: headDim, short_conv_kernel_size: taps } = linear_attn_config;
  const width = heads * headDim;
  for (const part of ["q", "k", "v"]) {
    weights.rename({ [`${name}.${part}_conv.conv.`]: `${name}.${part}_conv1d.` });
  }
  const parts = ["f_a_proj", "g_a_proj", "b_proj"].map((part) => `${name}.${part}`);
  const narrow = weights.joined(`${name}.narrow_proj`, parts, dims, [headDim, headDim, heads]);
  const steps = weights.linear(`${name}.f_b_proj`, headDim, width);
  const open = weights.linear(`${name}.g_b_proj`, headDim, width);
  const sizes = { dims, heads, headDim, taps };
  const { rate, bias } = featureRates(weights, name, sizes);
  return deltaAttention(weights, name, states, sizes, eps, (x) => {
    const [f, g, b] = split(narrow(x), [headDim, 2 * headDim]) as [MlxArray, MlxArray, MlxArray];
    const size = logAddExp(add(astype(steps(f), "float32"), bias), 0);
    return { decays: exp(negative(multiply(size, rate))), betas: b, open: open(g) };
  });
}

function sparseMlp(config: Config, weights: Weights, name: string): Linear {
  const { hidden_size: dims, num_experts: experts, moe_intermediate_size: hidden } = config;
  stackExperts(weights, name, experts, { gate_proj: "w1", up_proj: "w3", down_proj: "w2" });
  weights.rename({ [`${name}.gate.e_score`]: `${name}.e_score` });
  return routedMlp(
    weights,
    name,
    { experts, dims, hidden },
    {
      each: config.num_experts_per_token,
      scores: config.moe_router_activation_func,
      correction: `${name}.e_score_correction_bias`,
      groups: { count: config.num_expert_group, kept: config.topk_group, best: 2 },
      isNormalized: config.moe_renormalize,
      scale: config.routed_scaling_factor,
    },
    { name: `${name}.shared_experts`, width: hidden * config.num_shared_experts },
  );
}
