// Gemma 3 without images: five layers with a window to one without, each kind with positions of its own,
// and norms around attention and MLP and on queries and keys.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { add, astype, clip, multiply } from "../../mlx/ops.ts";
import { BaseConfig, headsOf, parseConfig, RopeScaling, windowOf } from "../config.ts";
import { type DecoderOptions, decoder } from "../decoder.ts";
import { attentionBlock, gatedMlp, rmsNorm } from "../layers.ts";
import type { Model } from "../model.ts";
import { makeRope, type Rope, type RopeOptions } from "../rope.ts";
import type { Weights } from "../weights.ts";

const RopeParameters = RopeScaling.extend({ rope_theta: z.number().positive().optional() });

/** Of models with positions of their own for layers with a window. */
export const RopesConfig = BaseConfig.extend({
  max_position_embeddings: z.int().positive().default(131_072),
  rope_theta: z.number().positive().default(1_000_000),
  rope_local_base_freq: z.number().positive().default(10_000),
  /** Where newer configurations keep both bases and the scaling. */
  rope_parameters: z
    .looseObject({ full_attention: RopeParameters, sliding_attention: RopeParameters })
    .partial()
    .nullish(),
});
type RopesConfig = Pick<
  z.infer<typeof RopesConfig>,
  | "max_position_embeddings"
  | "rope_theta"
  | "rope_local_base_freq"
  | "rope_parameters"
  | "rope_scaling"
>;

const Config = RopesConfig.extend({
  num_attention_heads: z.int().positive().default(8),
  num_key_value_heads: z.int().positive().default(4),
  head_dim: z.int().positive().default(256),
  vocab_size: z.int().positive().default(262_208),
  query_pre_attn_scalar: z.number().positive().default(256),
  sliding_window: z.int().default(512),
  /** One layer of so many sees everything. */
  sliding_window_pattern: z.int().positive().default(6),
  /** GGUF files keep norms as they are used: their configuration says 0. */
  norm_offset: z.number().default(1),
});

export function gemma3Text(config: unknown, weights: Weights): Model {
  return gemma3Decoder(config, weights);
}

export function gemma3Decoder(
  config: unknown,
  weights: Weights,
  options: DecoderOptions = {},
): Model {
  const parsed = parseConfig(Config, config);
  const { hidden_size: dims, intermediate_size, rms_norm_eps: eps, norm_offset } = parsed;
  const { prefix = "" } = options;
  const sizes = { dims, ...headsOf(parsed) };
  const ropes = makeRopes(parsed, weights, sizes.headDim);
  const makeNorm = (name: string, size = dims) => rmsNorm(weights, name, size, eps, norm_offset);
  return decoder(
    parsed,
    weights,
    (name, layer, states) => {
      const slides = (at: number) => (at + 1) % parsed.sliding_window_pattern !== 0;
      const window = windowOf(parsed, layer, slides);
      const attend = attentionBlock(weights, `${name}.self_attn`, states, sizes, {
        rope: window === undefined ? ropes.full : ropes.sliding,
        qNorm: makeNorm(`${name}.self_attn.q_norm`, sizes.headDim),
        kNorm: makeNorm(`${name}.self_attn.k_norm`, sizes.headDim),
        attention: { scale: parsed.query_pre_attn_scalar ** -0.5, window },
      });
      const mlp = gatedMlp(weights, `${name}.mlp`, dims, intermediate_size, "geglu");
      const inputNorm = makeNorm(`${name}.input_layernorm`);
      const postAttentionNorm = makeNorm(`${name}.post_attention_layernorm`);
      const preMlpNorm = makeNorm(`${name}.pre_feedforward_layernorm`);
      const postMlpNorm = makeNorm(`${name}.post_feedforward_layernorm`);
      return (x, step) => {
        const h = addWithin(x, postAttentionNorm(attend(inputNorm(x), step)));
        return addWithin(h, postMlpNorm(mlp(preMlpNorm(h))));
      };
    },
    {
      ...options,
      norm: makeNorm(`${prefix}model.norm`),
      afterEmbedding: (h) => multiply(h, toNearestBfloat16(dims ** 0.5)),
    },
  );
}

/** Of layers that see everything, and of those with a window. */
export function makeRopes(
  config: RopesConfig,
  weights: Weights,
  dims: number,
  slidingDims = dims,
): { full: Rope; sliding: Rope } {
  const { full_attention: full, sliding_attention: sliding } = config.rope_parameters ?? {};
  const options: RopeOptions = {
    dims,
    base: full?.rope_theta ?? config.rope_theta,
    scaling: config.rope_scaling ?? full,
    maxPositions: config.max_position_embeddings,
  };
  const localBase = sliding?.rope_theta ?? config.rope_local_base_freq;
  return {
    full: makeRope(weights, options),
    sliding: makeRope(weights, { dims: slidingDims, base: localBase }),
  };
}

/** The model was trained in bfloat16: its sums may leave the range of float16. */
function addWithin(x: MlxArray, y: MlxArray): MlxArray {
  if (x.dtype !== "float16") return add(x, y);
  const exact = add(astype(x, "float32"), astype(y, "float32"));
  return astype(clip(exact, -65_504, 65_504), "float16");
}

/** The factor as the model was trained with, whatever it is computed in. */
function toNearestBfloat16(value: number): number {
  const unit = 2 ** (Math.floor(Math.log2(value)) - 7);
  return Math.round(value / unit) * unit;
}
