// Kimi Linear: a delta net with a decay for each feature in most layers, latent attention in the others, and experts.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  astype,
  exp,
  logAddExp,
  multiply,
  negative,
  reshape,
  sigmoid,
  split,
  zeros,
} from "../../mlx/ops.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { routedMlp, stackExperts } from "../experts.ts";
import { latentAttention } from "../latent-layers.ts";
import { type AttentionBlock, gatedMlp, preNormBlock, projection, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { convolution, deltaScan, joinConvolutions } from "../recurrent-layers.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = BaseConfig.extend({
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
type Config = z.infer<typeof Config>;

export function kimiLinear(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = parsed;
  const { kda_layers } = parsed.linear_attn_config;
  const latentSizes = {
    dims,
    heads: parsed.num_attention_heads,
    queryRank: undefined,
    latent: parsed.kv_lora_rank,
    rotary: parsed.qk_rope_head_dim,
    plain: parsed.qk_nope_head_dim,
    value: parsed.v_head_dim,
  };
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
        ? deltaAttention(parsed, weights, `${name}.self_attn`, states)
        : latentAttention(weights, `${name}.self_attn`, states, latentSizes, { scale, eps });
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

function deltaAttention(
  config: Config,
  weights: Weights,
  name: string,
  states: LayerStates,
): AttentionBlock {
  const { hidden_size: dims, linear_attn_config, rms_norm_eps } = config;
  const { num_heads: heads, head_dim: headDim, short_conv_kernel_size: taps } = linear_attn_config;
  const width = heads * headDim;
  arrangeDeltaAttention(weights, name, heads, width);
  const project = projection(weights, name, { dims, heads, kvHeads: heads, headDim });
  const convolved = convolution(weights, `${name}.conv1d`, 3 * width, taps, "silu");
  const parts = ["f_a_proj", "g_a_proj", "b_proj"].map((part) => `${name}.${part}`);
  const narrow = weights.joined(`${name}.narrow_proj`, parts, dims, [headDim, headDim, heads]);
  const steps = weights.linear(`${name}.f_b_proj`, headDim, width);
  const outputGates = weights.linear(`${name}.g_b_proj`, headDim, width);
  const decay = decayOf(weights, name, heads, headDim);
  const headNorm = rmsNorm(weights, `${name}.o_norm`, headDim, rms_norm_eps);
  const oProj = weights.linear(`${name}.o_proj`, width, dims);
  const inputs = states.slot(taps - 1, 3 * width);
  const state = states.slot(heads, headDim, headDim);
  const scan = deltaScan(heads, headDim);
  return (input, step, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const [f, g, b] = split(narrow(x), [headDim, 2 * headDim]) as [MlxArray, MlxArray, MlxArray];
    const betas = sigmoid(astype(b, "float32"));
    const mixed = step.convolve(inputs, project(x), convolved);
    const gates = { decays: decay(steps(f)), betas };
    const read = step.scan(state, { x: mixed, gates }, scan);
    const normed = reshape(headNorm(reshape(read, [-1, heads, headDim])), [-1, width]);
    return oProj(multiply(normed, sigmoid(outputGates(g))), { residual });
  };
}

/** Of each feature: steps (T, heads * features) -> exp(-exp(A_log) * softplus(steps + dt_bias)) */
function decayOf(
  weights: Weights,
  name: string,
  heads: number,
  features: number,
): (steps: MlxArray) => MlxArray {
  const stored = weights.tensor(`${name}.A_log`, [heads], "float32");
  const bias = weights.tensor(`${name}.dt_bias`, [heads * features], "float32");
  const rate = weights.computed(() => {
    const byFeature = add(reshape(negative(exp(stored)), [heads, 1]), zeros([1, features]));
    return reshape(byFeature, [heads * features]);
  });
  return (steps) => {
    const sizes = logAddExp(add(astype(steps, "float32"), bias), 0);
    return exp(multiply(sizes, rate));
  };
}

/** Three convolutions are one over the channels of all, and some tensors have axes of size 1 that say nothing. */
function arrangeDeltaAttention(weights: Weights, name: string, heads: number, width: number): void {
  for (const part of ["q", "k", "v"]) {
    weights.rename({ [`${name}.${part}_conv.conv.`]: `${name}.${part}_conv1d.` });
  }
  joinConvolutions(weights, name);
  for (const [part, size] of [["A_log", heads] as const, ["dt_bias", width] as const]) {
    weights.arrange([`${name}.${part}`], ([stored]) => {
      const fits = stored!.shape.reduce((a, b) => a * b) === size;
      return { ...stored!, shape: fits ? [size] : stored!.shape };
    });
  }
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
