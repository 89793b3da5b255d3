// Qwen 3 Next: a gated delta net in three layers of four, gated attention in the fourth, and experts.
import { z } from "zod";
import { sigmoid } from "../../mlx/ops.ts";
import { headsOf, parseConfig } from "../config.ts";
import { type DecoderOptions, decoder } from "../decoder.ts";
import {
  type AttentionBlock,
  attentionBlock,
  gatedMlp,
  opened,
  preNormBlock,
  rmsNorm,
} from "../layers.ts";
import type { Model } from "../model.ts";
import { deltaNet } from "../recurrent-layers.ts";
import { makeRope, type Rope, ropeOptions } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";
import { isSparse, MoeConfig, sparseMlp } from "./qwen3-moe.ts";

const count = z.int().positive();

export const Config = MoeConfig.extend({
  linear_num_value_heads: count,
  linear_num_key_heads: count,
  linear_key_head_dim: count,
  linear_value_head_dim: count,
  linear_conv_kernel_dim: count,
  full_attention_interval: count.default(4),
  layer_types: z.array(z.enum(["linear_attention", "full_attention"])).nullish(),
  partial_rotary_factor: z.number().positive().default(0.25),
  shared_expert_intermediate_size: z.int().default(0),
});
export type Config = z.infer<typeof Config>;

export function qwen3Next(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  return hybridDecoder(parsed, weights, (name) => arrangeDeltaNet(parsed, weights, name));
}

/** `arrange` gives the tensors of a delta net the names that it asks for. */
export function hybridDecoder(
  config: Config,
  weights: Weights,
  arrange: (name: string) => void,
  options: DecoderOptions = {},
): Model {
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = config;
  const sizes = { dims, ...headsOf(config) };
  const rope = makeRope(weights, {
    ...ropeOptions(config, sizes.headDim),
    dims:
      sizes.headDim *
      (config.rope_parameters?.partial_rotary_factor ?? config.partial_rotary_factor),
  });
  const deltaSizes = {
    dims,
    keyHeads: config.linear_num_key_heads,
    valueHeads: config.linear_num_value_heads,
    keyDim: config.linear_key_head_dim,
    valueDim: config.linear_value_head_dim,
    taps: config.linear_conv_kernel_dim,
  };
  // The authors' files keep norms as their distance from 1. They have convolutions in PyTorch's order.
  const offset = weights.shapeOf("model.layers.0.linear_attn.conv1d.weight")?.[1] === 1 ? 1 : 0;
  const makeNorm = (name: string, size = dims) => rmsNorm(weights, name, size, eps, offset);
  return decoder(
    config,
    weights,
    (name, layer, states) => {
      const isLinear = (layer + 1) % config.full_attention_interval !== 0;
      if (isLinear) arrange(`${name}.linear_attn`);
      const mix = isLinear
        ? deltaNet(weights, `${name}.linear_attn`, states, deltaSizes, eps)
        : gatedAttention(weights, `${name}.self_attn`, states, sizes, rope, makeNorm);
      const mlp = isSparse(config, layer)
        ? sparseMlp(config, weights, `${name}.mlp`, {
            name: `${name}.mlp.shared_expert`,
            width: config.shared_expert_intermediate_size,
            gate: `${name}.mlp.shared_expert_gate`,
          })
        : gatedMlp(weights, `${name}.mlp`, dims, intermediate_size);
      return preNormBlock(
        mix,
        mlp,
        makeNorm(`${name}.input_layernorm`),
        makeNorm(`${name}.post_attention_layernorm`),
      );
    },
    {
      ...options,
      norm: makeNorm("model.norm"),
      ignored: /^(mtp|visual|vision_tower|model\.visual)\./,
    },
  );
}

/** What is attended to is gated, head by head: the file has a head's query and its gate side by side. */
function gatedAttention(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: { dims: number; heads: number; kvHeads: number; headDim: number },
  rope: Rope,
  makeNorm: (name: string, size: number) => ReturnType<typeof rmsNorm>,
): AttentionBlock {
  const { dims, heads, headDim } = sizes;
  const halves = (half: 0 | 1) =>
    Array.from({ length: heads }, (_, head) => {
      return { first: (2 * head + half) * headDim, count: headDim };
    });
  weights.check(`${name}.q_proj`, [2 * heads * headDim, dims]);
  weights.pick(`${name}.q_proj`, `${name}.gate_proj`, halves(1));
  weights.pick(`${name}.q_proj`, `${name}.query_proj`, halves(0));
  weights.rename({ [`${name}.query_proj.`]: `${name}.q_proj.` });
  const gate = weights.linear(`${name}.gate_proj`, dims, heads * headDim);
  return attentionBlock(weights, name, states, sizes, {
    rope,
    qNorm: makeNorm(`${name}.q_norm`, headDim),
    kNorm: makeNorm(`${name}.k_norm`, headDim),
    afterwards: (attended, x, fused) => opened(attended, sigmoid(gate(x, fused))),
    attention: { scale: headDim ** -0.5 },
  });
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
  // GGUF files have them in order.
  if (!weights.has(`${name}.in_proj_qkv.weight`)) {
    weights.check(source, [heads * width, config.hidden_size]);
    weights.pick(source, `${name}.in_proj_qkv`, [
      ...runs(width, 0, keyDim),
      ...runs(width, keyDim, keyDim),
      ...runs(width, 2 * keyDim, values),
    ]);
    weights.pick(source, `${name}.in_proj_z`, runs(width, 2 * keyDim + values, values));
  }
  weights.check(`${name}.in_proj_ba`, [2 * each * heads, config.hidden_size]);
  weights.pick(`${name}.in_proj_ba`, `${name}.in_proj_b`, runs(2 * each, 0, each));
  weights.pick(`${name}.in_proj_ba`, `${name}.in_proj_a`, runs(2 * each, each, each));
}
