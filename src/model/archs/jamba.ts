// Jamba: Mamba in most layers, attention without positions in the others, and experts in some.
import { z } from "zod";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { routedMlp } from "../experts.ts";
import { attentionBlock, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import { mambaMixer } from "../mamba-layers.ts";
import type { Model } from "../model.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = BaseConfig.extend({
  attn_layer_offset: z.int().default(4),
  attn_layer_period: count.default(8),
  expert_layer_offset: z.int().default(1),
  expert_layer_period: count.default(2),
  /** Instead of offset and period. */
  layers_block_type: z.array(z.enum(["mamba", "attention"])).nullish(),
  mamba_d_conv: count.default(4),
  mamba_d_state: count.default(16),
  mamba_expand: count.default(2),
  mamba_dt_rank: z.union([count, z.literal("auto")]).default("auto"),
  num_experts: count.default(16),
  num_experts_per_tok: count.default(2),
});

export function jamba(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size: hidden, rms_norm_eps: eps } = parsed;
  const { mamba_dt_rank, layers_block_type, num_experts: experts } = parsed;
  const heads = { dims, ...headsOf(parsed) };
  const sizes = {
    dims,
    channels: parsed.mamba_expand * dims,
    stateSize: parsed.mamba_d_state,
    rank: mamba_dt_rank === "auto" ? Math.ceil(dims / 16) : mamba_dt_rank,
    taps: parsed.mamba_d_conv,
  };
  const attends = (layer: number) =>
    layers_block_type
      ? layers_block_type[layer] === "attention"
      : layer % parsed.attn_layer_period === parsed.attn_layer_offset;
  const isSparse = (layer: number) =>
    experts > 1 && layer % parsed.expert_layer_period === parsed.expert_layer_offset;
  const routing = {
    each: parsed.num_experts_per_tok,
    scores: "softmax" as const,
    isNormalized: true,
    scale: 1,
  };
  weights.rename({ "model.final_layernorm.": "model.norm." });
  return decoder(parsed, weights, (name, layer, states) => {
    const mamba = `${name}.mamba`;
    const mix = attends(layer)
      ? attentionBlock(weights, `${name}.self_attn`, states, heads, {
          attention: { scale: heads.headDim ** -0.5 },
        })
      : mambaMixer(weights, mamba, states, sizes, {
          steps: rmsNorm(weights, `${mamba}.dt_layernorm`, sizes.rank, eps),
          keys: rmsNorm(weights, `${mamba}.b_layernorm`, sizes.stateSize, eps),
          queries: rmsNorm(weights, `${mamba}.c_layernorm`, sizes.stateSize, eps),
        });
    const mlp = `${name}.feed_forward`;
    if (isSparse(layer)) weights.rename({ [`${mlp}.router.`]: `${mlp}.gate.` });
    return preNormBlock(
      mix,
      isSparse(layer)
        ? routedMlp(weights, mlp, { experts, dims, hidden }, routing)
        : gatedMlp(weights, mlp, dims, hidden),
      rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
      rmsNorm(weights, `${name}.pre_ff_layernorm`, dims, eps),
    );
  });
}
