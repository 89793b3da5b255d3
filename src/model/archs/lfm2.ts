// LFM 2: short convolutions in most layers, attention in the others.
import { z } from "zod";
import type { Linear } from "../../device/device.ts";
import { multiply, split } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { type AttentionBlock, attentionBlock, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { convolution } from "../recurrent-layers.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

export const LfmConfig = BaseConfig.extend({
  norm_eps: z.number().positive().default(1e-5),
  conv_L_cache: z.int().positive(),
  rope_theta: z.number().positive().default(1_000_000),
  block_ff_dim: z.int().positive().nullish(),
  block_multiple_of: z.int().positive().default(256),
  block_ffn_dim_multiplier: z.number().nullish(),
  block_auto_adjust_ff_dim: z.boolean().default(false),
  full_attn_idxs: z.array(z.int()).nullish(),
  layer_types: z.array(z.enum(["conv", "full_attention"])).nullish(),
});
export type LfmConfig = z.infer<typeof LfmConfig>;

export function lfm2(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(LfmConfig, config);
  const hidden = mlpSize(parsed);
  return lfmDecoder(parsed, weights, (name) => {
    nameMlp(weights, name);
    return gatedMlp(weights, name, parsed.hidden_size, hidden);
  });
}

export function lfmDecoder(
  config: LfmConfig,
  weights: Weights,
  makeMlp: (name: string, layer: number) => Linear,
): Model {
  const { hidden_size: dims, norm_eps: eps, full_attn_idxs, layer_types } = config;
  const sizes = { dims, ...headsOf(config) };
  const rope = makeRope(weights, ropeOptions(config, sizes.headDim));
  weights.rename({ "model.embedding_norm.": "model.norm." });
  const attends = (layer: number) =>
    full_attn_idxs?.includes(layer) ?? layer_types?.[layer] === "full_attention";
  return decoder(
    { ...config, rms_norm_eps: eps, tie_word_embeddings: true },
    weights,
    (name, layer, states) => {
      const attention = `${name}.self_attn`;
      weights.rename({ [`${attention}.out_proj.`]: `${attention}.o_proj.` });
      const mix = attends(layer)
        ? attentionBlock(weights, attention, states, sizes, {
            rope,
            qNorm: rmsNorm(weights, `${attention}.q_layernorm`, sizes.headDim, eps),
            kNorm: rmsNorm(weights, `${attention}.k_layernorm`, sizes.headDim, eps),
            attention: { scale: sizes.headDim ** -0.5 },
          })
        : shortConvolution(weights, `${name}.conv`, states, dims, config.conv_L_cache);
      return preNormBlock(
        mix,
        makeMlp(`${name}.feed_forward`, layer),
        rmsNorm(weights, `${name}.operator_norm`, dims, eps),
        rmsNorm(weights, `${name}.ffn_norm`, dims, eps),
      );
    },
  );
}

/** The convolution of one part of the input, with another part as a gate before and a third behind it. */
function shortConvolution(
  weights: Weights,
  name: string,
  states: LayerStates,
  dims: number,
  taps: number,
): AttentionBlock {
  const inProj = weights.linear(`${name}.in_proj`, dims, 3 * dims);
  const outProj = weights.linear(`${name}.out_proj`, dims, dims);
  const convolved = convolution(weights, `${name}.conv`, dims, taps);
  const inputs = states.slot(taps - 1, dims);
  return (x, step, { norm, residual } = {}) => {
    const [before, behind, value] = split(inProj(x, { norm }), 3);
    const mixed = step.convolve(inputs, multiply(before!, value!), convolved);
    return outProj(multiply(behind!, mixed), { residual });
  };
}

/** The names that other architectures have for w1, w3 and w2. */
export function nameMlp(weights: Weights, name: string): void {
  weights.rename({
    [`${name}.w1.`]: `${name}.gate_proj.`,
    [`${name}.w3.`]: `${name}.up_proj.`,
    [`${name}.w2.`]: `${name}.down_proj.`,
  });
}

function mlpSize(config: LfmConfig): number {
  const size = config.block_ff_dim ?? config.intermediate_size;
  if (!config.block_auto_adjust_ff_dim) return size;
  const { block_ffn_dim_multiplier: factor, block_multiple_of: multiple } = config;
  const narrowed = Math.floor((2 * size) / 3);
  const scaled = factor == null ? narrowed : Math.floor(factor * narrowed);
  return multiple * Math.ceil(scaled / multiple);
}
