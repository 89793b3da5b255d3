// DeepSeek V2 and Coder V2: latent attention, experts chosen by softmax from the groups with the best of them.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { BaseConfig, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { type Routing, routedMlp } from "../experts.ts";
import { type LatentParts, latentAttention } from "../latent-layers.ts";
import { type AttentionBlock, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, ropeOptions, yarnScale } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

/** What configurations of the same make say of experts. */
export const ExpertsConfig = BaseConfig.extend({
  moe_intermediate_size: count.default(1407),
  n_routed_experts: count.nullish(),
  n_shared_experts: count.nullish(),
  num_experts_per_tok: count.nullish(),
  n_group: count.nullish(),
  topk_group: count.nullish(),
  topk_method: z.string().default("greedy"),
  norm_topk_prob: z.boolean().default(true),
  routed_scaling_factor: z.number().positive().default(1),
  moe_layer_freq: count.default(1),
  first_k_dense_replace: z.int().default(0),
});
export type ExpertsConfig = z.infer<typeof ExpertsConfig>;

export const DeepseekConfig = ExpertsConfig.extend({
  q_lora_rank: count.nullish(),
  kv_lora_rank: count.default(512),
  qk_rope_head_dim: count.default(64),
  qk_nope_head_dim: count.default(128),
  v_head_dim: count.default(128),
});
export type DeepseekConfig = z.infer<typeof DeepseekConfig>;

/** Of the norms of latents, whatever the configuration says of the others. */
export const LATENT_EPS = 1e-6;

export function deepseekV2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(DeepseekConfig, config);
  const { num_experts_per_tok, n_group, topk_group, topk_method } = parsed;
  const isGrouped = topk_method === "group_limited_greedy" && n_group && topk_group;
  const routing: Routing = {
    each: num_experts_per_tok ?? 1,
    scores: "softmax",
    groups: isGrouped ? { count: n_group, kept: topk_group, best: 1 } : undefined,
    isNormalized: false,
    scale: parsed.routed_scaling_factor,
  };
  return deepseekDecoder(parsed, weights, LATENT_EPS, () => routing);
}

export type LatentConfig = Pick<
  DeepseekConfig,
  | "hidden_size"
  | "num_attention_heads"
  | "q_lora_rank"
  | "kv_lora_rank"
  | "qk_rope_head_dim"
  | "qk_nope_head_dim"
  | "v_head_dim"
> &
  Parameters<typeof ropeOptions>[0];

/** Of scores. */
export function latentScale(config: LatentConfig): number {
  const { qk_nope_head_dim: plain, qk_rope_head_dim: rotary } = config;
  return (plain + rotary) ** -0.5 * yarnScale(ropeOptions(config, rotary));
}

/** The attention of a layer under this name. */
export function deepseekAttention(
  config: LatentConfig,
  weights: Weights,
  latentEps: number,
): (name: string, states: LayerStates, parts?: Partial<LatentParts>) => AttentionBlock {
  const { qk_nope_head_dim: plain, qk_rope_head_dim: rotary } = config;
  const sizes = {
    dims: config.hidden_size,
    heads: config.num_attention_heads,
    queryRank: config.q_lora_rank ?? undefined,
    latent: config.kv_lora_rank,
    rotary,
    plain,
    value: config.v_head_dim,
  };
  const rope = makeRope(weights, ropeOptions(config, rotary));
  const scale = latentScale(config);
  return (name, states, parts) =>
    latentAttention(weights, name, states, sizes, { scale, rope, eps: latentEps, ...parts });
}

/** `routing` of the MLP with this name. */
export function deepseekDecoder(
  config: DeepseekConfig,
  weights: Weights,
  latentEps: number,
  routing: (name: string) => Routing,
  ignored = layersBehind(config),
): Model {
  const { hidden_size: dims, rms_norm_eps: eps } = config;
  const attention = deepseekAttention(config, weights, latentEps);
  const mlp = expertLayers(config, weights, routing);
  return decoder(
    config,
    weights,
    (name, layer, states) =>
      preNormBlock(
        attention(`${name}.self_attn`, states),
        mlp(`${name}.mlp`, layer),
        rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
        rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
      ),
    { ignored },
  );
}

/** MLPs of layers with these names: experts in most of them, but not in the first. */
export function expertLayers(
  config: ExpertsConfig,
  weights: Weights,
  routing: (name: string) => Routing,
): (name: string, layer: number) => Linear {
  const { hidden_size: dims, n_routed_experts: experts, moe_intermediate_size: hidden } = config;
  return (name, layer) => {
    const isSparse = layer >= config.first_k_dense_replace && layer % config.moe_layer_freq === 0;
    if (!experts || !isSparse) return gatedMlp(weights, name, dims, config.intermediate_size);
    return routedMlp(weights, name, { experts, dims, hidden }, routing(name), {
      name: `${name}.shared_experts`,
      width: hidden * (config.n_shared_experts ?? 0),
    });
  };
}

/** A layer behind the last predicts one token more, which is not used. */
export function layersBehind({ num_hidden_layers }: { num_hidden_layers: number }): RegExp {
  return new RegExp(`^model\\.layers\\.${num_hidden_layers}\\.`);
}
