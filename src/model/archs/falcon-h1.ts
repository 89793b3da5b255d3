// Falcon H1: Mamba 2 and attention side by side in every layer, with a factor on most of what they take and make.
import { z } from "zod";
import type { Gating, Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { add, multiply } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig } from "../config.ts";
import { decoder } from "../decoder.ts";
import { type AttentionBlock, attentionBlock, gatedMlp, preNormBlock, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { type GatedNorm, groupedNorm, mamba2Mixer } from "../recurrent-layers.ts";
import { makeRope, ropeOptions } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();

const Config = BaseConfig.extend({
  head_dim: count.default(64),
  rope_theta: z.number().positive().default(100_000_000_000),
  rms_norm_eps: z.number().positive().default(1e-5),
  mamba_d_conv: count.default(4),
  mamba_d_head: count.default(64),
  mamba_d_state: count.default(128),
  mamba_n_groups: count.default(1),
  mamba_n_heads: count.default(24),
  mamba_rms_norm: z.boolean().default(false),
  mamba_norm_before_gate: z.boolean().default(false),
  embedding_multiplier: z.number().default(5.656854249492381),
  lm_head_multiplier: z.number().default(0.0390625),
  attention_in_multiplier: z.number().default(1),
  attention_out_multiplier: z.number().default(0.9375),
  key_multiplier: z.number().default(0.390625),
  /** Of gates, and of what goes down. */
  mlp_multipliers: z.tuple([z.number(), z.number()]).default([0.8838834764831844, 0.5859375]),
  ssm_in_multiplier: z.number().default(1.25),
  ssm_out_multiplier: z.number().default(0.23570226039551587),
  /** Of gates, values, keys, queries and step sizes. */
  ssm_multipliers: z
    .array(z.number())
    .length(5)
    .default([0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738]),
  tie_word_embeddings: z.boolean().default(true),
});
type Config = z.infer<typeof Config>;

/** MLX's files have their weights multiplied already. Of the logits' factor that leaves the part of a tied matrix. */
function withoutFactors(config: Config): Config {
  const { tie_word_embeddings, lm_head_multiplier, embedding_multiplier } = config;
  return {
    ...config,
    embedding_multiplier: 1,
    lm_head_multiplier: tie_word_embeddings ? lm_head_multiplier / embedding_multiplier : 1,
    attention_in_multiplier: 1,
    attention_out_multiplier: 1,
    key_multiplier: 1,
    mlp_multipliers: [1, 1],
    ssm_in_multiplier: 1,
    ssm_out_multiplier: 1,
    ssm_multipliers: [1, 1, 1, 1, 1],
  };
}

export function falconH1(config: unknown, weights: Weights): Model {
  const stored = parseConfig(Config, config);
  // The authors' files have convolutions in PyTorch's order.
  const isAuthors = weights.shapeOf("model.layers.0.mamba.conv1d.weight")?.[1] === 1;
  const parsed = isAuthors ? stored : withoutFactors(stored);
  const { hidden_size: dims, rms_norm_eps: eps } = parsed;
  const sizes = { dims, ...headsOf(parsed) };
  const rope = makeRope(weights, ropeOptions(parsed, sizes.headDim));
  const { attention_in_multiplier, attention_out_multiplier, key_multiplier } = parsed;
  // Factors on queries and keys are factors on their scores, one on values is one on what is attended to.
  const scale = sizes.headDim ** -0.5 * attention_in_multiplier ** 2 * key_multiplier;
  const attended = attention_in_multiplier * attention_out_multiplier;
  weights.rename({ "model.final_layernorm.": "model.norm." });
  return decoder(
    parsed,
    weights,
    (name, _, states) => {
      const attention = { scale };
      const attend = attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope,
        attention,
      });
      const mix = mamba(parsed, weights, `${name}.mamba`, states);
      return preNormBlock(
        (input, step, { norm, residual } = {}) => {
          const x = norm ? norm(input) : input;
          const both = add(
            scaled(mix(x, step), parsed.ssm_out_multiplier),
            scaled(attend(x, step), attended),
          );
          return residual ? add(residual, both) : both;
        },
        scaledMlp(parsed, weights, `${name}.feed_forward`),
        rmsNorm(weights, `${name}.input_layernorm`, dims, eps),
        rmsNorm(weights, `${name}.pre_ff_layernorm`, dims, eps),
      );
    },
    {
      afterEmbedding: (h) => scaled(h, parsed.embedding_multiplier),
      afterLogits: (logits) => scaled(logits, parsed.lm_head_multiplier),
    },
  );
}

function scaled(x: MlxArray, factor: number): MlxArray {
  return factor === 1 ? x : multiply(x, factor);
}

function mamba(
  config: Config,
  weights: Weights,
  name: string,
  states: LayerStates,
): AttentionBlock {
  const sizes = {
    dims: config.hidden_size,
    heads: config.mamba_n_heads,
    headDim: config.mamba_d_head,
    groups: config.mamba_n_groups,
    stateSize: config.mamba_d_state,
    taps: config.mamba_d_conv,
    limits: [0, Infinity] as const,
  };
  const all = config.ssm_multipliers.map((factor) => factor * config.ssm_in_multiplier);
  const [gates, values, keys, queries, steps] = all as [number, number, number, number, number];
  const gated = gatedNorm(config, weights, `${name}.norm`);
  return mamba2Mixer(
    weights,
    name,
    states,
    sizes,
    (y, gate) => gated(y, scaled(gate, gates)),
    all.every((factor) => factor === 1) ? undefined : { values, keys, queries, steps },
  );
}

function gatedNorm(config: Config, weights: Weights, name: string): GatedNorm {
  const gated: GatedNorm = (y, gate) => weights.device.gate("swiglu", gate, y);
  if (!config.mamba_rms_norm) return gated;
  const { mamba_n_heads, mamba_d_head, mamba_n_groups: groups, rms_norm_eps: eps } = config;
  const norm = groupedNorm(weights, name, mamba_n_heads * mamba_d_head, eps, groups);
  return config.mamba_norm_before_gate
    ? (y, gate) => gated(norm(y), gate)
    : (y, gate) => norm(gated(y, gate));
}

function scaledMlp(config: Config, weights: Weights, name: string): Linear {
  const { hidden_size: dims, intermediate_size, mlp_multipliers } = config;
  const [gates, downs] = mlp_multipliers;
  const swiglu: Gating =
    gates === 1 ? "swiglu" : (gate, up) => weights.device.gate("swiglu", multiply(gate, gates), up);
  const mlp = gatedMlp(weights, name, dims, intermediate_size, swiglu);
  if (downs === 1) return mlp;
  return (x, { norm, residual } = {}) => {
    const made = multiply(mlp(x, { norm }), downs);
    return residual ? add(residual, made) : made;
  };
}
