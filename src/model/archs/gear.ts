// Gear: Gemma 3's norms, windows and positions, and layers in which keys and values of the last few tokens are
// convolved and gated by queries, in place of attention.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { expandDims, multiply, reshape, sigmoid, split } from "../../mlx/ops.ts";
import { gatingOf } from "../activations.ts";
import { headsOf, parseConfig } from "../config.ts";
import {
  type AttentionBlock,
  type AttentionSizes,
  projection,
  rmsNorm,
  softCap,
} from "../layers.ts";
import type { Model } from "../model.ts";
import { convolution } from "../recurrent-layers.ts";
import type { LayerStates } from "../states.ts";
import { transformer } from "../transformer.ts";
import type { Weights } from "../weights.ts";
import { makeRopes, RopesConfig } from "./gemma3-text.ts";

const Config = RopesConfig.extend({
  layer_types: z.array(z.enum(["full_attention", "sliding_attention", "conv_mixer"])).nullish(),
  query_pre_attn_scalar: z.number().positive().nullish(),
  hidden_activation: z.string().default("gelu_pytorch_tanh"),
  conv_L_cache: z.int().min(2).default(3),
  final_logit_softcapping: z.number().positive().nullish(),
  attn_logit_softcapping: z.number().positive().nullish(),
  use_bidirectional_attention: z.literal(false).default(false),
});

export function gear(config: unknown, weights: Weights): Model {
  const { layer_types: types, rope_parameters, ...parsed } = parseConfig(Config, config);
  const { hidden_size: dims, rms_norm_eps: eps, final_logit_softcapping: cap } = parsed;
  const sizes = { dims, ...headsOf(parsed) };
  const { headDim } = sizes;
  const ropes = makeRopes({ ...parsed, rope_parameters }, weights, headDim);
  weights.leaveOut(/embed_scale$/);
  weights.renameParts({ ".local_mixer.": ".self_attn." });
  const makeNorm = (name: string, size = dims) => rmsNorm(weights, name, size, eps, 1);
  return transformer(parsed, weights, {
    makeNorm: (name) => makeNorm(name),
    norms: {
      attention: "input_layernorm",
      afterAttention: "post_attention_layernorm",
      mlp: "pre_feedforward_layernorm",
      afterMlp: "post_feedforward_layernorm",
    },
    slides: (layer) => types?.[layer] === "sliding_attention",
    rope: (_, window) => (window === undefined ? ropes.full : ropes.sliding),
    attention: {
      scale: (parsed.query_pre_attn_scalar ?? headDim) ** -0.5,
      softcap: parsed.attn_logit_softcapping ?? undefined,
    },
    parts: (name) => ({
      qNorm: makeNorm(`${name}.q_norm`, headDim),
      kNorm: makeNorm(`${name}.k_norm`, headDim),
    }),
    mix: (name, layer, states) =>
      types?.[layer] === "conv_mixer"
        ? convolvedMixer(weights, name, states, sizes, parsed.conv_L_cache, makeNorm)
        : undefined,
    gating: gatingOf(parsed.hidden_activation, "hidden_activation"),
    afterEmbedding: (h) => multiply(h, dims ** 0.5),
    afterLogits: (logits) => (cap ? softCap(logits, cap) : logits),
  });
}

function convolvedMixer(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: AttentionSizes,
  taps: number,
  makeNorm: (name: string, size: number) => (x: MlxArray) => MlxArray,
): AttentionBlock {
  const { dims, heads, kvHeads, headDim } = sizes;
  const [queries, keys] = [heads * headDim, kvHeads * headDim];
  const project = projection(weights, name, sizes);
  const oProj = weights.linear(`${name}.o_proj`, queries, dims);
  const [qNorm, kNorm] = ["q_norm", "k_norm"].map((part) => makeNorm(`${name}.${part}`, headDim));
  const [forKeys, forValues] = ["key_conv", "value_conv"].map((part) => ({
    state: states.slot(taps - 1, keys),
    convolution: convolution(weights, `${name}.${part}`, keys, taps),
  }));
  const byHead = (x: MlxArray, axes: number[]) => reshape(x, [-1, ...axes, headDim]);
  return (x, step, { norm, residual } = {}) => {
    const [q, k, v] = split(project(x, { norm }), [queries, queries + keys]) as [
      MlxArray,
      MlxArray,
      MlxArray,
    ];
    const normedKeys = reshape(kNorm!(byHead(k, [kvHeads])), [-1, keys]);
    const placed = (from: typeof forKeys, input: MlxArray) => {
      const mixed = step.convolve(from!.state, input, from!.convolution);
      return expandDims(byHead(mixed, [kvHeads]), 2); // (T, kvHeads, 1, D)
    };
    const query = qNorm!(byHead(q, [kvHeads, heads / kvHeads]));
    const open = sigmoid(multiply(query, placed(forKeys, normedKeys)));
    return oProj(reshape(multiply(open, placed(forValues, v)), [-1, queries]), { residual });
  };
}
