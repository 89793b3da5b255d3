// Qwen 3 Next: a gated delta net in three layers of four, gated attention in the fourth, and experts.
import { count, integer, layerTypes, share } from "../config.ts";
import type { Design } from "../design.ts";
import { type ConfigOf, family } from "../family.ts";
import { deltaNet, deltaNetKeys, deltaNetSizes } from "../recurrent-layers.ts";
import type { Weights } from "../weights.ts";
import { qwenExperts, qwenMoeConfig } from "./qwen3-moe.ts";

export const hybridConfig = {
  ...qwenMoeConfig,
  ...deltaNetKeys,
  full_attention_interval: count.default(4),
  layer_types: layerTypes("linear_attention", "full_attention"),
  partial_rotary_factor: share.default(0.25),
  shared_expert_intermediate_size: integer.default(0),
};
type Config = ConfigOf<typeof hybridConfig>;

export const qwen3Next = family({
  config: hybridConfig,
  design: (config, weights) =>
    hybridDesign(config, weights, (name) => arrangeDeltaNet(config, weights, name)),
});

/** `arrange` gives the tensors of a delta net the names that it asks for. */
export function hybridDesign(
  config: Config,
  weights: Weights,
  arrange: (name: string) => void,
): Design {
  const isLinear = (layer: number) => (layer + 1) % config.full_attention_interval !== 0;
  return {
    // The authors' files keep norms as their distance from 1. They have convolutions in PyTorch's order.
    normOffset: weights.shapeOf("model.layers.0.linear_attn.conv1d.weight")?.[1] === 1 ? 1 : 0,
    attentionName: (layer) => (isLinear(layer) ? "linear_attn" : "self_attn"),
    mix: (name, layer, states) => {
      if (!isLinear(layer)) return undefined;
      arrange(name);
      return deltaNet(weights, name, states, deltaNetSizes(config), config.rms_norm_eps);
    },
    headNorms: ["q_norm", "k_norm"],
    outputGate: { name: "gate_proj" },
    // The file has a head's query and its gate side by side.
    arrange: (name, { dims, heads, headDim }) => {
      const halves = (half: 0 | 1) =>
        Array.from({ length: heads }, (_, head) => {
          return { first: (2 * head + half) * headDim, count: headDim };
        });
      weights.check(`${name}.q_proj`, [2 * heads * headDim, dims]);
      weights.pick(`${name}.q_proj`, `${name}.gate_proj`, halves(1));
      weights.reorder(`${name}.q_proj`, halves(0));
    },
    experts: qwenExperts(
      { ...config, layer_types: undefined },
      config.shared_expert_intermediate_size,
    ),
  };
}

/** Side by side for each key head: query, key, values and gates; and betas with step sizes. */
function arrangeDeltaNet(config: Config, weights: Weights, name: string): void {
  const { linear_num_key_heads: heads, linear_key_head_dim: keyDim } = config;
  const each = config.linear_num_value_heads / heads;
  const values = each * config.linear_value_head_dim;
  const width = 2 * keyDim + 2 * values;
  const runs = (size: number, at: number, length: number) =>
    Array.from({ length: heads }, (_, head) => ({ first: head * size + at, count: length }));
  const source = `${name}.in_proj_qkvz`;
  weights.check(source, [heads * width, config.hidden_size]);
  weights.check(`${name}.in_proj_ba`, [2 * each * heads, config.hidden_size]);
  weights.pick(source, `${name}.in_proj_qkv`, [
    ...runs(width, 0, keyDim),
    ...runs(width, keyDim, keyDim),
    ...runs(width, 2 * keyDim, values),
  ]);
  weights.pick(source, `${name}.in_proj_z`, runs(width, 2 * keyDim + values, values));
  weights.pick(`${name}.in_proj_ba`, `${name}.in_proj_b`, runs(2 * each, 0, each));
  weights.pick(`${name}.in_proj_ba`, `${name}.in_proj_a`, runs(2 * each, each, each));
}
