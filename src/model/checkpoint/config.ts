// Defines the schemas of config.json, to which architectures add keys.
import { z } from "zod";
import { isObject } from "../../files/json.ts";
import { LoadError } from "../../files/load-error.ts";

// Schemas of single values, which most configuration keys use.
export const count = z.int().positive();
export const positive = z.number().positive();
export const share = positive.max(1);
export const integer = z.int();
export const real = z.number();
export const flag = z.boolean();
export const word = z.string();

/** Schema of a list with one layer type per layer. */
export const layerTypes = (...types: [string, ...string[]]) => z.array(z.enum(types));

export const RopeScaling = z.looseObject({
  type: z.string().optional(),
  rope_type: z.string().optional(),
  factor: z.number().positive().optional(),
  low_freq_factor: z.number().optional(),
  high_freq_factor: z.number().optional(),
  original_max_position_embeddings: z.number().optional(),
  beta_fast: z.number().optional(),
  beta_slow: z.number().optional(),
  /** Whether yarn's ramp is rounded to begin and end at whole features. */
  truncate: z.boolean().optional(),
  /** Factor on rotated features, in place of the one derived from `factor`. */
  attention_factor: z.number().positive().nullish(),
  mscale: z.number().optional(),
  mscale_all_dim: z.number().optional(),
  /** Wavelength factors of longrope: for sequences up to original_max_position_embeddings, and for longer ones. */
  short_factor: z.array(z.number()).optional(),
  long_factor: z.array(z.number()).optional(),
  short_mscale: z.number().positive().optional(),
  long_mscale: z.number().positive().optional(),
  partial_rotary_factor: z.number().positive().optional(),
  /** Context extension factor of NTK scaling, which enlarges the base. */
  alpha: z.number().positive().optional(),
});
export type RopeScaling = z.infer<typeof RopeScaling>;

/** RoPE of the layers of one type. */
export const LayerRope = z.looseObject({
  rope_theta: positive.optional(),
  rope_scaling: RopeScaling.nullish(),
  partial_rotary_factor: share.nullish(),
});

/** A number, or {"__float__": "Infinity"}: newer configurations write infinity so, because JSON lacks it. */
const limit = z.union([
  z.number(),
  z.literal(Infinity),
  z.looseObject({ __float__: z.literal("Infinity") }).transform(() => Infinity),
]);

/** Limits of a recurrent layer's step size. */
export const StepLimits = z.tuple([limit, limit]);

export const BaseConfig = z.looseObject({
  model_type: z.string(),
  hidden_size: count,
  num_hidden_layers: count,
  intermediate_size: count.default(1),
  num_attention_heads: count,
  num_key_value_heads: count.nullish(),
  head_dim: count.nullish(),
  rms_norm_eps: positive.default(1e-6),
  /** Replaces the offset that the architecture adds to norm weights: 0 for GGUF files, whose weights contain it. */
  norm_offset: z.number().nullish(),
  vocab_size: count,
  max_position_embeddings: count.nullish(),
  rope_theta: positive.default(10_000),
  rope_scaling: RopeScaling.nullish(),
  /** Fraction of a head's features, from the first one on, that RoPE rotates. */
  partial_rotary_factor: share.nullish(),
  /** RoPE of layers with a window, if it differs from the other layers'. */
  sliding_rope: LayerRope.nullish(),
  sliding_window: z.int().nullish(),
  layer_types: layerTypes("full_attention", "sliding_attention").nullish(),
  tie_word_embeddings: z.boolean().nullish(),
});
export type BaseConfig = z.infer<typeof BaseConfig>;

/** Relaxes the attention keys for models without attention, whose files have 0 heads or leave the keys out. */
export const withoutAttention = {
  num_attention_heads: integer.default(0),
  num_key_value_heads: integer.nullish(),
};

/** Maps our keys to a family's names for them. */
export type Keys = Readonly<Record<string, string>>;

export type Defaults = Readonly<Record<string, number | boolean>>;

/** Parses the configuration. Throws one line that names the first wrong key. */
export function parseConfig<T extends z.ZodType>(
  schema: T,
  config: unknown,
  keys: Keys = {},
  defaults: Defaults = {},
): z.infer<T> {
  const stored = Object(config) as Json;
  const given = asPublished(stored);
  const renamed = Object.entries(keys).map(([key, own]) => [key, given[own] ?? given[key]]);
  const named: typeof given = { ...given, ...Object.fromEntries(renamed) };
  const missing = Object.entries(defaults).filter(([key]) => named[key] === undefined);
  const parsed = schema.safeParse({ ...named, ...Object.fromEntries(missing) });
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const [key = "", ...inside] = issue?.path ?? [];
  const own = key in stored ? key : ({ ...savedAs, ...keys }[String(key)] ?? key);
  throw new LoadError(`config.json: ${[own, ...inside].join(".")}: ${issue?.message}`);
}

type Json = Readonly<Record<string, unknown>>;

/** Layer types that transformers 5 has renamed, with their new names. */
const renamedTypes = new Map<unknown, string>([
  ["mamba", "linear_attention"],
  ["attention", "full_attention"],
]);

/** Our keys -> the keys that transformers 5 saves, for error messages. */
const savedAs: Keys = {
  rope_scaling: "rope_parameters",
  sliding_rope: "rope_parameters.sliding_attention",
};

/** Keys with the same meaning. A family reads one of them, while transformers 5 may save another. */
const synonyms = [
  ["n_routed_experts", "num_experts", "num_local_experts"],
  ["num_experts_per_tok", "num_experts_per_token"],
  ["n_shared_experts", "num_shared_experts"],
  ["norm_topk_prob", "moe_renormalize"],
  ["n_group", "num_expert_group"],
  ["max_position_embeddings", "model_max_length"],
];

/**
 * Converts keys that transformers 5 saves to those that authors publish, and layer types to transformers 5's names.
 * transformers 5 saves everything about RoPE in rope_parameters, flat or by layer type.
 */
function asPublished({ rope_parameters: ropes, ...rest }: Json): Json {
  const config: Record<string, unknown> = rest;
  for (const key of ["layer_types", "layers_block_type"]) {
    const types = config[key];
    if (Array.isArray(types)) config[key] = types.map((type) => renamedTypes.get(type) ?? type);
  }
  for (const keys of synonyms) {
    const value = keys.map((key) => config[key]).find((each) => each != null);
    if (value != null) for (const key of keys) config[key] ??= value;
  }
  if (!isObject(ropes)) return config;
  const { full_attention: far = ropes, sliding_attention: near } = ropes;
  const ropeOf = (rope: Json) => {
    const { rope_theta = config.rope_theta } = rope;
    const { partial_rotary_factor = config.partial_rotary_factor } = rope;
    return { rope_theta, partial_rotary_factor, rope_scaling: rope };
  };
  return {
    ...config,
    ...(isObject(far) ? ropeOf({ ...far, ...Object(config.rope_scaling) }) : {}),
    sliding_rope: isObject(near) ? ropeOf(near) : undefined,
  };
}

/** Configuration keys that determine head counts and head size. */
export type HeadConfig = Pick<
  BaseConfig,
  "hidden_size" | "num_attention_heads" | "num_key_value_heads" | "head_dim"
>;

/** GPU kernels divide a head's features among at least this many lanes (threads of a warp). */
const LANES_OF_A_HEAD = 8;

export function headsOf(config: HeadConfig): { heads: number; kvHeads: number; headDim: number } {
  const heads = config.num_attention_heads;
  const kvHeads = config.num_key_value_heads ?? heads;
  const headDim = config.head_dim ?? config.hidden_size / heads;
  if (heads % kvHeads !== 0 || !Number.isInteger(headDim)) {
    throw new LoadError(`config.json: ${heads} heads do not fit ${kvHeads} KV heads of ${headDim}`);
  }
  if (headDim % LANES_OF_A_HEAD !== 0) {
    const needed = `a multiple of ${LANES_OF_A_HEAD} is needed`;
    throw new LoadError(`config.json: heads have ${headDim} features: ${needed}`);
  }
  return { heads, kvHeads, headDim };
}

/** Returns how many layers have keys and values of their own; the last `sharing` layers read earlier layers'. */
export function kvOwnersOf(layers: number, sharing: number, key: string): number {
  if (sharing < layers) return layers - sharing;
  throw new LoadError(`config.json: ${key}: no layer has keys and values of its own`);
}

/** Returns a layer's window; undefined for full attention. layer_types decides or, if it is absent, `slides`. */
export function windowOf(
  { layer_types, sliding_window }: Pick<BaseConfig, "layer_types" | "sliding_window">,
  layer: number,
  slides: (layer: number) => boolean,
): number | undefined {
  const type = layer_types?.[layer] ?? (slides(layer) ? "sliding_attention" : "full_attention");
  return type === "sliding_attention" ? sliding_window || undefined : undefined;
}
