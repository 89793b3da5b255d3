// PLaMo 2: a variant of Mamba in every other layer, attention in the others, and norms before and after mixers and
// MLPs.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { count, flag, integer } from "../checkpoint/config.ts";
import type { LayerStates } from "../contract/states.ts";
import { type ConfigOf, family } from "../design/family.ts";
import { mambaMixer } from "../layers/mamba-layers.ts";
import { everyOther } from "../layers/qkv.ts";
import type { Weights } from "../weights/weights.ts";
import { plamoNorms } from "./plamo3.ts";

const keys = {
  hidden_size_per_head: count.default(128),
  attention_window_size: count.default(2048),
  full_attention_idx: z.array(integer).nullish(),
  mamba_d_state: count.default(64),
  mamba_d_conv: count.default(4),
  mamba_num_heads: count.default(64),
  mamba_step: integer.min(2).default(2),
  mamba_enabled: flag.default(true),
  tie_word_embeddings: flag.default(true),
};
type Config = ConfigOf<typeof keys>;

export const plamo2 = family({
  config: keys,
  design: (config, weights) => ({
    ...plamoNorms(weights, config),
    config: {
      head_dim: config.hidden_size_per_head,
      sliding_window: config.attention_window_size,
      rope_theta: 10_000,
      rope_scaling: undefined,
    },
    attentionName: "mixer",
    slides: (layer) => !config.full_attention_idx?.includes(layer),
    headwiseNorms: {
      query: "q_weight",
      key: "k_weight",
      // The epsilon of these norms is fixed; the configured one does not apply.
      norm: (x) => weights.device.rmsNorm(x, undefined, 1e-6),
    },
    mix: (name, layer, states) =>
      isMamba(config, layer) ? mamba(config, weights, name, states) : undefined,
  }),
});

function isMamba({ mamba_enabled, mamba_step: step, num_hidden_layers }: Config, layer: number) {
  if (!mamba_enabled) return false;
  const middle = Math.floor(step / 2);
  if (num_hidden_layers <= middle) return layer !== num_hidden_layers - 1;
  return layer % step !== middle;
}

function mamba(config: Config, weights: Weights, name: string, states: LayerStates) {
  const { hidden_size: dims, mamba_num_heads: heads, hidden_size_per_head: headDim } = config;
  const { mamba_d_state: stateSize, mamba_d_conv: taps, rms_norm_eps: eps } = config;
  const [channels, rank] = [heads * headDim, Math.max(64, Math.floor(dims / 16))];
  // Reorders rows: the file alternates gate and values per head, our Mamba mixer takes all values, then all gates.
  weights.matrices.check(`${name}.in_proj`, [2 * channels, dims]);
  weights.matrices.reorder(`${name}.in_proj`, [
    ...everyOther(heads, headDim, 1),
    ...everyOther(heads, headDim, 0),
  ]);
  // Reorders rows: the file has keys, queries, step sizes; our Mamba mixer takes step sizes first.
  weights.matrices.check(`${name}.bcdt_proj`, [2 * stateSize + rank, channels]);
  weights.matrices.pick(`${name}.bcdt_proj`, `${name}.x_proj`, [
    { first: 2 * stateSize, count: rank },
    { first: 0, count: 2 * stateSize },
  ]);
  const norm = (part: string, size: number) => {
    const weight = weights.arrays.tensor(`${name}.${part}_norm_weight`, [size]);
    return (x: MlxArray) => weights.device.rmsNorm(x, weight, eps);
  };
  return mambaMixer(
    weights,
    name,
    states,
    { dims, channels, heads, stateSize, rank, taps },
    { steps: norm("dt", rank), keys: norm("B", stateSize), queries: norm("C", stateSize) },
  );
}
