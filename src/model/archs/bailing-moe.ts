// Ling and Ring, by inclusionAI: experts, and one matrix for queries, keys and values.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { type DecoderOptions, decoder } from "../decoder.ts";
import { routedMlp } from "../experts.ts";
import {
  type AttentionBlock,
  type AttentionSizes,
  attentionBlock,
  gatedMlp,
  preNormBlock,
  rmsNorm,
} from "../layers.ts";
import type { Model } from "../model.ts";
import { normedColumns } from "../norm-head.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";
import { layersBehind } from "./deepseek-v2.ts";

const count = z.int().positive();

export const BailingConfig = BaseConfig.extend({
  moe_intermediate_size: count,
  moe_shared_expert_intermediate_size: count.nullish(),
  moe_router_enable_expert_bias: z.boolean().default(false),
  moe_router_enable_shared_expert: z.boolean().default(true),
  num_experts: count,
  num_experts_per_tok: count,
  num_shared_experts: z.int().default(0),
  score_function: z.enum(["softmax", "sigmoid"]).default("softmax"),
  norm_topk_prob: z.boolean().default(true),
  routed_scaling_factor: z.number().default(1),
  n_group: count.default(1),
  topk_group: count.default(1),
  first_k_dense_replace: z.int().default(0),
  use_qk_norm: z.boolean().default(false),
  norm_head: z.boolean().default(false),
  partial_rotary_factor: z.number().positive().max(1).default(1),
  rotary_dim: count.nullish(),
});
export type BailingConfig = z.infer<typeof BailingConfig>;

export function bailingMoe(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(BailingConfig, config);
  return bailingDecoder(parsed, weights, bailingAttention(parsed, weights));
}

/** `name`.self_attn is what the files call attention. */
export function bailingDecoder(
  config: BailingConfig,
  weights: Weights,
  makeAttention: (name: string, layer: number, states: LayerStates) => AttentionBlock,
): Model {
  const { hidden_size: dims, rms_norm_eps: eps, norm_head } = config;
  weights.rename({ "model.word_embeddings.": "model.embed_tokens." });
  const options: DecoderOptions = {
    ignored: layersBehind(config),
    head: norm_head ? (head) => normedColumns(weights, head, dims) : undefined,
  };
  return decoder(
    config,
    weights,
    (name, layer, states) => {
      const attention = `${name}.self_attn`;
      weights.rename({ [`${name}.attention.`]: `${attention}.` });
      weights.rename({
        [`${attention}.query_key_value.`]: `${attention}.qkv_proj.`,
        [`${attention}.dense.`]: `${attention}.o_proj.`,
      });
      return preNormBlock(
        makeAttention(attention, layer, states),
        bailingMlp(config, weights, `${name}.mlp`, layer),
        rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
        rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps),
      );
    },
    options,
  );
}

export function bailingAttention(config: BailingConfig, weights: Weights) {
  const { hidden_size: dims, rms_norm_eps: eps, rotary_dim, partial_rotary_factor } = config;
  const sizes = { dims, ...headsOf(config) };
  const { headDim } = sizes;
  const rotary = rotary_dim ?? Math.floor(headDim * partial_rotary_factor);
  const rope = makeRope(weights, ropeOptions(config, rotary));
  return (name: string, _: number, states: LayerStates): AttentionBlock =>
    attentionBlock(weights, name, states, sizes, {
      rope,
      ...headNorms(weights, name, sizes, config.use_qk_norm ? eps : undefined),
      attention: { scale: headDim ** -0.5 },
    });
}

/** Norms of queries and keys; without an epsilon there are none. */
export function headNorms(
  weights: Weights,
  name: string,
  { headDim }: Pick<AttentionSizes, "headDim">,
  eps: number | undefined,
) {
  if (eps === undefined) return {};
  return {
    qNorm: rmsNorm(weights, `${name}.query_layernorm`, headDim, eps),
    kNorm: rmsNorm(weights, `${name}.key_layernorm`, headDim, eps),
  };
}

function bailingMlp(config: BailingConfig, weights: Weights, name: string, layer: number): Linear {
  const { hidden_size: dims, moe_intermediate_size: hidden, num_experts: experts } = config;
  const { moe_shared_expert_intermediate_size, num_shared_experts, n_group, topk_group } = config;
  if (layer < config.first_k_dense_replace) {
    return gatedMlp(weights, name, dims, config.intermediate_size);
  }
  weights.rename({ [`${name}.gate.gate_proj.`]: `${name}.gate.` });
  const isShared = config.moe_router_enable_shared_expert;
  const width = (moe_shared_expert_intermediate_size ?? hidden) * num_shared_experts;
  return routedMlp(
    weights,
    name,
    { experts, dims, hidden },
    {
      each: config.num_experts_per_tok,
      scores: config.score_function,
      correction: config.moe_router_enable_expert_bias ? `${name}.gate.expert_bias` : undefined,
      groups:
        n_group > 1 ? { count: n_group, kept: topk_group, best: 2, leavesOut: true } : undefined,
      isNormalized: config.norm_topk_prob,
      scale: config.routed_scaling_factor,
    },
    { name: `${name}.shared_experts`, width: isShared ? width : 0 },
  );
}
