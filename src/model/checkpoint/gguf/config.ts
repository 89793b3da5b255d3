// Converts a GGUF file's metadata to Hugging Face's configuration.
import type { Gguf, GgufTensor, GgufValue } from "../../../files/gguf.ts";
import { LoadError, quoted } from "../../../files/load-error.ts";
import { ggufFamilies } from "./families.ts";
import type { GgufValues as Values } from "./family.ts";

export type GgufConfig = Readonly<Record<string, unknown>> & {
  model_type: string;
  num_hidden_layers: number;
  /** Number of multi-token prediction (MTP) layers, which are ignored. */
  num_nextn_predict_layers: number;
  num_attention_heads: number;
  num_key_value_heads: number;
  head_dim?: number;
};

/** GGUF's general.architecture -> model_type. */
const modelTypes = new Map([
  ...Array.from(ggufFamilies, ([name, { modelType }]) => [name, modelType] as const),
  ["llama", "llama"],
  ["qwen2", "qwen2"],
  ["qwen3", "qwen3"],
  ["qwen3moe", "qwen3_moe"],
  ["gemma2", "gemma2"],
  ["gemma3", "gemma3_text"],
  ["phi3", "phi3"],
  ["smollm3", "smollm3"],
  ["granite", "granite"],
  ["olmo2", "olmo2"],
]);

/** Names of llama.cpp's architectures that we support. */
export const ggufArchitectures: readonly string[] = [...modelTypes.keys()].sort();

/** Reads a tensor's numbers: some configuration values are stored as tensors. */
export type ReadNumbers = (tensor: GgufTensor) => number[];

export function ggufConfig(gguf: Gguf, numbersOf: ReadNumbers): GgufConfig {
  const values = valuesIn(gguf);
  const { optional, required } = values;
  const heads = required("attention.head_count");
  const hidden = required("embedding_length");
  const further = optional("nextn_predict_layers") ?? 0;
  const layers = layerCount(gguf, values) - further;
  const headDim = optional("attention.key_length") ?? hidden / (heads || 1);
  const maxPositions = optional("context_length");
  const window = slidingWindow(values);
  return {
    model_type: modelTypeOf(values, window),
    hidden_size: hidden,
    num_hidden_layers: layers,
    num_nextn_predict_layers: further,
    // If all layers have experts, the file may give only the experts' width.
    intermediate_size:
      optional("feed_forward_length") ??
      optional("expert_feed_forward_length") ??
      required("feed_forward_length"),
    num_attention_heads: heads,
    num_key_value_heads: optional("attention.head_count_kv") ?? heads,
    head_dim: headDim,
    rms_norm_eps:
      optional("attention.layer_norm_epsilon") ?? required("attention.layer_norm_rms_epsilon"),
    vocab_size: optional("vocab_size") ?? vocabulary(gguf),
    max_position_embeddings: maxPositions,
    rope_theta: optional("rope.freq_base") ?? 10_000,
    rope_scaling: ropeScaling(gguf, values, numbersOf),
    partial_rotary_factor: partialRotaryFactor(values, headDim),
    sliding_window: window,
    tie_word_embeddings: !gguf.tensors.has("output.weight"),
    // Set only for architectures whose configuration has layer types.
    layer_types: layerTypes(gguf, values, layers, window),
    num_experts: optional("expert_count"),
    num_local_experts: optional("expert_count"),
    num_experts_per_tok: optional("expert_used_count"),
    moe_intermediate_size: optional("expert_feed_forward_length"),
    norm_topk_prob: true,
    decoder_sparse_step: 1,
    mlp_only_layers: [],
    no_rope_layer_interval: 4,
    // No offset is added to norm weights: GGUF files store Gemma's weights with the 1 added.
    norm_offset: 0,
    query_pre_attn_scalar: queryScalar(values.modelType, layers, headDim, hidden / heads),
    rope_local_base_freq: optional("rope.freq_base_swa") ?? 10_000,
    original_max_position_embeddings: optional("rope.scaling.original_context_length"),
    final_logit_softcapping: optional("final_logit_softcapping"),
    attn_logit_softcapping: optional("attn_logit_softcapping"),
    embedding_multiplier: optional("embedding_scale"),
    residual_multiplier: optional("residual_scale"),
    attention_multiplier: optional("attention.scale"),
    logits_scaling: optional("logit_scale"),
    ...ggufFamilies.get(values.architecture)?.config?.(values, gguf),
  };
}

/** Returns the model type: files store Olmo 3 as Olmo 2 with a window, and Mixtral as Llama with experts. */
function modelTypeOf({ modelType, optional }: Values, window: number | undefined): string {
  if (modelType === "olmo2" && window) return "olmo3";
  if (modelType === "llama" && optional("expert_count")) return "mixtral";
  return modelType;
}

/** Returns the file's architecture, and functions that read its keys. */
function valuesIn({ metadata }: Gguf): Values {
  const architecture = metadata.get("general.architecture");
  const modelType = typeof architecture === "string" ? modelTypes.get(architecture) : undefined;
  if (!modelType) {
    const known = ggufArchitectures.join(", ");
    const found = typeof architecture === "string" ? quoted(architecture) : typeof architecture;
    throw new LoadError(`GGUF architecture ${found} is not supported; there are ${known}`);
  }
  const isUneven = ggufFamilies.get(`${architecture}`)?.isUneven === true;
  const optional = (key: string) => {
    const value = metadata.get(`${architecture}.${key}`);
    if (value === undefined) return undefined;
    if (isUneven && isList(value)) return Math.max(...numbersIn(`${architecture}.${key}`, value));
    return single(`${architecture}.${key}`, value);
  };
  const list = (key: string) => {
    // Tries the bare key first: a few keys have no architecture prefix.
    const named = metadata.has(key) ? key : `${architecture}.${key}`;
    const value = metadata.get(named);
    if (value === undefined) throw new LoadError(`the GGUF file has no ${named}`);
    const count = Number(metadata.get(`${architecture}.block_count`));
    if (!isList(value)) return Array<number>(count).fill(single(named, value));
    const numbers = numbersIn(named, value);
    if (numbers.length === count) return numbers;
    throw new LoadError(`the GGUF file's ${named} has ${numbers.length} numbers, not ${count}`);
  };
  const required = (key: string) => {
    const value = optional(key);
    if (value === undefined) throw new LoadError(`the GGUF file has no ${architecture}.${key}`);
    return value;
  };
  return { architecture: architecture as string, modelType, optional, required, list };
}

/** Returns the number of layers. Rejects more layers than tensors before a list of that length is allocated. */
function layerCount({ tensors }: Gguf, { architecture, required }: Values): number {
  const layers = required("block_count");
  if (Number.isInteger(layers) && layers > 0 && layers <= tensors.size) return layers;
  throw new LoadError(
    `the GGUF file's ${architecture}.block_count is ${layers}, with ${tensors.size} tensors`,
  );
}

function vocabulary({ metadata, tensors }: Gguf): number | undefined {
  const tokens = metadata.get("tokenizer.ggml.tokens");
  return Array.isArray(tokens) ? tokens.length : tensors.get("token_embd.weight")?.shape[0];
}

function ropeScaling({ metadata, tensors }: Gguf, values: Values, numbersOf: ReadNumbers) {
  const { architecture, optional, required } = values;
  const kind = metadata.get(`${architecture}.rope.scaling.type`) ?? "linear";
  const factor = optional("rope.scaling.factor") ?? optional("rope.scale_linear");
  if (typeof kind !== "string" || !["none", "linear", "yarn", "longrope"].includes(kind)) {
    const found = typeof kind === "string" ? quoted(kind) : typeof kind;
    throw new LoadError(`the GGUF file's ${architecture}.rope.scaling.type is ${found}`);
  }
  const isScaled = ["linear", "yarn"].includes(kind) && factor !== undefined && factor > 1;
  const factorsIn = (name: string) => {
    const tensor = tensors.get(`${name}.weight`);
    return tensor && numbersOf(tensor);
  };
  const single = factorsIn("rope_freqs");
  const long = factorsIn("rope_factors_long");
  if (isScaled && (single || long)) {
    throw new LoadError("the GGUF file scales rotary positions twice: by factors and in metadata");
  }
  // Returns a file's factors per frequency (llama3's scaling) as longrope, the same for short and long sequences.
  if (single) {
    const context = optional("context_length") ?? 131_072;
    return {
      type: "longrope",
      long_factor: single,
      short_factor: single,
      original_max_position_embeddings: context,
    };
  }
  if (long) {
    return {
      type: "longrope",
      long_factor: long,
      short_factor: factorsIn("rope_factors_short"),
      original_max_position_embeddings: ggufFamilies.has(architecture)
        ? (optional("rope.scaling.original_context_length") ?? required("context_length"))
        : required("rope.scaling.original_context_length"),
    };
  }
  if (!isScaled) return undefined;
  return present({
    type: kind,
    factor,
    original_max_position_embeddings: optional("rope.scaling.original_context_length"),
    beta_fast: optional("rope.scaling.yarn_beta_fast"),
    beta_slow: optional("rope.scaling.yarn_beta_slow"),
    ...yarnGains(values),
  });
}

/** Returns yarn's `truncate` for gpt-oss, and mscale values for families that store a log multiplier. */
function yarnGains({ architecture, optional }: Values) {
  if (architecture === "gpt-oss") return { truncate: false };
  const gain = optional("rope.scaling.yarn_log_multiplier");
  if (gain === undefined) return {};
  if (architecture === "mistral3") return { mscale: 1, mscale_all_dim: gain };
  const isTenth = ["deepseek2", "mistral4"].includes(architecture);
  return isTenth ? { mscale: 10 * gain, mscale_all_dim: 10 * gain } : {};
}

function partialRotaryFactor({ architecture, optional }: Values, headDim: number) {
  const rotated = optional("rope.dimension_count");
  if (rotated !== undefined && rotated < headDim) return rotated / headDim;
  // Returns 1, the whole head, for `ggufFamilies`: by default, some of their architectures rotate only a part.
  return ggufFamilies.has(architecture) ? 1 : undefined;
}

/** Returns the window, undefined for none; the file's 0 also means none. */
function slidingWindow({ modelType, optional }: Values): number | undefined {
  const fallback = modelType === "gemma2" ? 4096 : undefined;
  return (optional("attention.sliding_window") ?? fallback) || undefined;
}

/** By model type, the n for which every n-th layer has no window. */
const windowPeriods: Partial<Record<string, number>> = { gemma2: 2, gemma3_text: 6, olmo2: 4 };

function layerTypes(
  { metadata }: Gguf,
  { architecture, modelType }: Values,
  layers: number,
  window: number | undefined,
): string[] | undefined {
  const period = windowPeriods[modelType] ?? ggufFamilies.get(architecture)?.windowPeriod;
  if (period === undefined) return undefined;
  const key = `${architecture}.attention.sliding_window_pattern`;
  const pattern = metadata.get(key) ?? period;
  const isSliding = slidingLayers(key, pattern);
  return Array.from({ length: layers }, (_, layer) =>
    window && isSliding(layer) ? "sliding_attention" : "full_attention",
  );
}

/** Tells which layers have a window, from a period or a flag per layer. */
function slidingLayers(key: string, pattern: GgufValue): (layer: number) => boolean {
  if (Array.isArray(pattern) || ArrayBuffer.isView(pattern)) {
    const list = Array.from(pattern as ArrayLike<unknown>, Boolean);
    return (layer) => list[layer] ?? false;
  }
  const period = single(key, pattern);
  return (layer) => period === 0 || layer % period < period - 1;
}

/** Returns query_pre_attn_scalar, which the file lacks. As in llama.cpp, the layer count decides. */
function queryScalar(modelType: string, layers: number, headDim: number, perHead: number) {
  if (modelType === "gemma2") return layers === 46 ? perHead : headDim;
  if (modelType === "gemma3_text") return layers === 62 ? perHead : headDim;
  return undefined;
}

function present<T extends object>(fields: T): Partial<T> {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as Partial<T>;
}

function isList(value: GgufValue): value is Extract<GgufValue, object> {
  return Array.isArray(value) || ArrayBuffer.isView(value);
}

function numbersIn(key: string, value: Extract<GgufValue, object>): number[] {
  const numbers = Array.from(value as ArrayLike<unknown>, Number);
  if (numbers.length > 0 && numbers.every(Number.isFinite)) return numbers;
  throw new LoadError(`the GGUF file's ${key} is not a list of numbers`);
}

function single(key: string, value: GgufValue): number {
  // Accepts a list of equal numbers: some files have one per layer.
  const values = ArrayBuffer.isView(value) ? Array.from(value as Int32Array) : [value];
  const number = Number(values[0]);
  if (!Number.isFinite(number) || values.some((other) => Number(other) !== number)) {
    throw new LoadError(`the GGUF file's ${key} is not one number`);
  }
  return number;
}
