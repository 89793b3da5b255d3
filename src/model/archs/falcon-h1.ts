// Falcon H1: Mamba 2 and attention in parallel in every layer, with factors on most inputs and outputs.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { add, multiply } from "../../mlx/ops.ts";
import { count, flag, headsOf, positive, real } from "../checkpoint/config.ts";
import type { LayerStates } from "../contract/states.ts";
import { type ConfigOf, family } from "../design/family.ts";
import {
  type GatedNorm,
  mamba2Keys,
  mamba2Mixer,
  mamba2Sizes,
  shortMamba2Keys,
} from "../layers/mamba2-layers.ts";
import { groupedNorm } from "../layers/recurrent-layers.ts";
import type { Extent } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";

const keys = {
  ...mamba2Keys,
  head_dim: count.default(64),
  rope_theta: positive.default(100_000_000_000),
  rms_norm_eps: positive.default(1e-5),
  conv_kernel: count.default(4),
  mamba_head_dim: count.default(64),
  ssm_state_size: count.default(128),
  n_groups: count.default(1),
  mamba_num_heads: count.default(24),
  mamba_rms_norm: flag.default(false),
  mamba_norm_before_gate: flag.default(true),
  embedding_multiplier: real.default(5.656854249492381),
  lm_head_multiplier: real.default(0.0390625),
  attention_in_multiplier: real.default(1),
  attention_out_multiplier: real.default(0.9375),
  key_multiplier: real.default(0.390625),
  /** Factors on the MLP's gate and on its output. */
  mlp_multipliers: z.tuple([real, real]).default([0.8838834764831844, 0.5859375]),
  ssm_in_multiplier: real.default(1.25),
  ssm_out_multiplier: real.default(0.23570226039551587),
  /** Factors on gates, values, keys, queries and step sizes. */
  ssm_multipliers: z
    .array(real)
    .length(5)
    .default([0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738]),
  tie_word_embeddings: flag.default(true),
};
type Config = ConfigOf<typeof keys>;

export const falconH1 = family({
  config: keys,
  keys: shortMamba2Keys,
  design: (stored, weights) => {
    // Recognizes the authors' files by PyTorch's axis order of convolutions; MLX's files have another order.
    const isAuthors = weights.stored.get("model.layers.0.mamba.conv1d.weight")?.shape[1] === 1;
    const config = isAuthors ? stored : { ...stored, ...withoutFactors(stored) };
    const { attention_in_multiplier, attention_out_multiplier, key_multiplier } = config;
    const [gates, downs] = config.mlp_multipliers;
    const attended = attention_in_multiplier * attention_out_multiplier;
    return {
      mlpName: "feed_forward",
      norms: { attention: "input_layernorm", mlp: "pre_ff_layernorm" },
      attention: {
        // Moves the factors on queries and keys to the scores, and the factor on values to attention's output.
        scale: headsOf(config).headDim ** -0.5 * attention_in_multiplier ** 2 * key_multiplier,
      },
      around: (attend, { name, states }) => {
        const mix = mamba(config, weights, name.replace(/self_attn$/, "mamba"), states);
        return (input, step, { norm, residual } = {}) => {
          const x = norm ? norm(input) : input;
          const read = scaled(mix(x, step), config.ssm_out_multiplier);
          const both = add(read, scaled(attend(x, step), attended));
          return residual ? add(residual, both) : both;
        };
      },
      gating:
        gates === 1
          ? "swiglu"
          : (gate, up) => weights.device.gate("swiglu", multiply(gate, gates), up),
      mlpScale: downs,
      embeddingScale: config.embedding_multiplier,
      logitScale: config.lm_head_multiplier,
    };
  },
});

/** Sets factors to 1: MLX's weights contain them. A tied output matrix has the embedding's factor, not its own. */
function withoutFactors({ tie_word_embeddings, ...config }: Config) {
  const { lm_head_multiplier, embedding_multiplier } = config;
  return {
    embedding_multiplier: 1,
    lm_head_multiplier: tie_word_embeddings ? lm_head_multiplier / embedding_multiplier : 1,
    attention_in_multiplier: 1,
    attention_out_multiplier: 1,
    key_multiplier: 1,
    mlp_multipliers: [1, 1] as [number, number],
    ssm_in_multiplier: 1,
    ssm_out_multiplier: 1,
    ssm_multipliers: [1, 1, 1, 1, 1],
  };
}

function scaled(x: MlxArray, factor: number): MlxArray {
  return factor === 1 ? x : multiply(x, factor);
}

function mamba(config: Config, weights: Weights, name: string, states: LayerStates) {
  const sizes = mamba2Sizes(config);
  const all = config.ssm_multipliers.map((factor) => factor * config.ssm_in_multiplier);
  const [gates, values, keys, queries, steps] = all as [number, number, number, number, number];
  const gated: GatedNorm = (y, gate) => weights.device.gate("swiglu", scaled(gate, gates), y);
  const makeNorm = (own: Extent): GatedNorm => {
    if (!config.mamba_rms_norm) return gated;
    const norm = groupedNorm(weights, `${name}.norm`, own, config.rms_norm_eps, sizes.groups);
    return config.mamba_norm_before_gate
      ? (y, gate) => gated(norm(y), gate)
      : (y, gate) => norm(gated(y, gate));
  };
  const isScaled = all.some((factor) => factor !== 1);
  const factors = isScaled ? { values, keys, queries, steps } : undefined;
  return mamba2Mixer(weights, name, states, sizes, makeNorm, factors);
}
