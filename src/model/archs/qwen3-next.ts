// Qwen 3 Next: a gated delta net in three layers of four, gated attention in the fourth, and experts.
import { count, layerTypes } from "../config.ts";
import { type ConfigOf, family } from "../family.ts";
import { everyOther } from "../qkv.ts";
import { deltaNet, deltaNetKeys, deltaNetSizes } from "../recurrent-layers.ts";
import type { Weights } from "../weights.ts";
import { qwen2Moe } from "./qwen2-moe.ts";

export const qwen3Next = family({
  like: qwen2Moe,
  config: {
    ...deltaNetKeys,
    full_attention_interval: count.default(4),
    layer_types: layerTypes("linear_attention", "full_attention").nullish(),
  },
  defaults: { partial_rotary_factor: 0.25, shared_expert_intermediate_size: 0 },
  design: (config, weights) => {
    const isLinear = (layer: number) => (layer + 1) % config.full_attention_interval !== 0;
    return {
      // The authors' files keep norms as their distance from 1. They have convolutions in PyTorch's order.
      normOffset: weights.shapeOf("model.layers.0.linear_attn.conv1d.weight")?.[1] === 1 ? 1 : 0,
      slides: () => false,
      attentionName: (layer) => (isLinear(layer) ? "linear_attn" : "self_attn"),
      mix: (name, layer, states) => {
        if (!isLinear(layer)) return undefined;
        arrangeDeltaNet(config, weights, name);
        return deltaNet(weights, name, states, deltaNetSizes(config), config.rms_norm_eps);
      },
      headNorms: ["q_norm", "k_norm"],
      outputGate: { name: "gate_proj" },
      // The file has a head's query and its gate side by side.
      arrange: (name, { dims, heads, headDim }) => {
        weights.check(`${name}.q_proj`, [2 * heads * headDim, dims]);
        weights.pick(`${name}.q_proj`, `${name}.gate_proj`, everyOther(heads, headDim, 1));
        weights.reorder(`${name}.q_proj`, everyOther(heads, headDim, 0));
      },
    };
  },
});

type Config = ConfigOf<typeof deltaNetKeys>;

/** Side by side for each key head: query, key, values and gates; and betas with step sizes. */
function arrangeDeltaNet(
  config: Pick<Config, "hidden_size" | keyof typeof deltaNetKeys>,
  weights: Weights,
  name: string,
): void {
  const { linear_num_key_heads: heads, linear_key_head_dim: keyDim } = config;
  const each = config.linear_num_value_heads / heads;
  const values = each * config.linear_value_head_dim;
  const width = 2 * keyDim + 2 * values;
  const runs = (size: number, at: number, length: number) =>
    Array.from({ length: heads }, (_, head) => ({ first: head * size + at, count: length }));
  const [mixed, rates] = [`${name}.in_proj_qkvz`, `${name}.in_proj_ba`];
  // GGUF files have these in order, and those of Qwen 3.5 have all apart.
  if (weights.has(`${mixed}.weight`)) {
    weights.check(mixed, [heads * width, config.hidden_size]);
    weights.pick(mixed, `${name}.in_proj_qkv`, [
      ...runs(width, 0, keyDim),
      ...runs(width, keyDim, keyDim),
      ...runs(width, 2 * keyDim, values),
    ]);
    weights.pick(mixed, `${name}.in_proj_z`, runs(width, 2 * keyDim + values, values));
  }
  if (weights.has(`${rates}.weight`)) {
    weights.check(rates, [2 * each * heads, config.hidden_size]);
    weights.pick(rates, `${name}.in_proj_b`, runs(2 * each, 0, each));
    weights.pick(rates, `${name}.in_proj_a`, runs(2 * each, each, each));
  }
}
