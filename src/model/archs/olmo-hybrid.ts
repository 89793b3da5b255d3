// OLMo Hybrid: a gated delta net in most layers, with norms before it and the MLP; in the others OLMo 2's attention,
// with norms behind both.
import { z } from "zod";
import { add } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig, RopeScaling } from "../config.ts";
import { decoder } from "../decoder.ts";
import {
  attentionBlock,
  type Block,
  gatedMlp,
  preNormBlock,
  projection,
  rmsNorm,
} from "../layers.ts";
import type { Model } from "../model.ts";
import { deltaNet, joinConvolutions } from "../recurrent-layers.ts";
import { makeRope } from "../rope.ts";
import type { LayerStates } from "../states.ts";
import type { Weights } from "../weights.ts";

const count = z.int().positive();
const theta = z.number().positive().nullish();

const Config = BaseConfig.omit({
  rope_theta: true,
  rope_parameters: true,
  layer_types: true,
}).extend({
  linear_num_key_heads: count,
  linear_num_value_heads: count,
  linear_key_head_dim: count,
  linear_value_head_dim: count,
  linear_conv_kernel_dim: count,
  /** Whether betas are up to 2. */
  linear_allow_neg_eigval: z.boolean().default(false),
  layer_norm_epsilon: z.number().positive().default(1e-5),
  layer_types: z.array(z.enum(["linear_attention", "full_attention"])).nullish(),
  /** null for no positions. */
  rope_theta: theta.default(10_000),
  rope_parameters: RopeScaling.extend({ rope_theta: theta }).nullish(),
});
type Config = z.infer<typeof Config>;

export function olmoHybrid(config: unknown, weights: Weights): Model {
  const parsed = parseConfig(Config, config);
  const { layer_types } = parsed;
  const attention = attentionLayer(parsed, weights);
  return decoder(parsed, weights, (name, layer, states) => {
    const kind = layer_types?.[layer] ?? (layer % 4 === 3 ? "full_attention" : "linear_attention");
    return kind === "full_attention"
      ? attention(name, states)
      : deltaLayer(parsed, weights, name, states);
  });
}

function attentionLayer(config: Config, weights: Weights) {
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps, rope_parameters } = config;
  const sizes = { dims, ...headsOf(config) };
  const { heads, kvHeads, headDim } = sizes;
  const base = rope_parameters ? rope_parameters.rope_theta : config.rope_theta;
  const rope = base == null ? undefined : makeRope(weights, { dims: headDim, base });
  return (name: string, states: LayerStates): Block => {
    const attention = `${name}.self_attn`;
    const norms = {
      q: rmsNorm(weights, `${attention}.q_norm`, heads * headDim, eps),
      k: rmsNorm(weights, `${attention}.k_norm`, kvHeads * headDim, eps),
    };
    const attend = attentionBlock(weights, attention, states, sizes, {
      rope,
      project: projection(weights, attention, sizes, norms),
      attention: { scale: headDim ** -0.5 },
    });
    const mlp = gatedMlp(weights, `${name}.mlp`, dims, intermediate_size);
    const attentionNorm = rmsNorm(weights, `${name}.post_attention_layernorm`, dims, eps);
    const mlpNorm = rmsNorm(weights, `${name}.post_feedforward_layernorm`, dims, eps);
    return (x, step) => {
      const h = add(x, attentionNorm(attend(x, step)));
      return add(h, mlpNorm(mlp(h)));
    };
  };
}

function deltaLayer(config: Config, weights: Weights, layer: string, states: LayerStates): Block {
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps } = config;
  const name = `${layer}.linear_attn`;
  const sizes = {
    dims,
    keyHeads: config.linear_num_key_heads,
    valueHeads: config.linear_num_value_heads,
    keyDim: config.linear_key_head_dim,
    valueDim: config.linear_value_head_dim,
    taps: config.linear_conv_kernel_dim,
  };
  joinConvolutions(weights, name);
  weights.rename({
    [`${name}.g_proj.`]: `${name}.in_proj_z.`,
    [`${name}.b_proj.`]: `${name}.in_proj_b.`,
    [`${name}.a_proj.`]: `${name}.in_proj_a.`,
    [`${name}.o_norm.`]: `${name}.norm.`,
    [`${name}.o_proj.`]: `${name}.out_proj.`,
  });
  const most = config.linear_allow_neg_eigval ? 2 : 1;
  return preNormBlock(
    deltaNet(weights, name, states, sizes, config.layer_norm_epsilon, most),
    gatedMlp(weights, `${layer}.mlp`, dims, intermediate_size),
    rmsNorm(weights, `${layer}.input_layernorm`, dims, eps),
    rmsNorm(weights, `${layer}.post_attention_layernorm`, dims, eps),
  );
}
