// Maps GGUF's tensor names to Hugging Face's, and their rows and columns to Hugging Face's order.
import type { GgufConfig } from "./config.ts";
import { ggufFamilies } from "./families.ts";

const outside = new Map([
  ["token_embd", "model.embed_tokens"],
  ["position_embd", "model.embed_positions"],
  ["output_norm", "model.norm"],
  ["output", "lm_head"],
]);

const inBlock = new Map([
  ["attn_norm", "input_layernorm"],
  ["attn_q", "self_attn.q_proj"],
  ["attn_k", "self_attn.k_proj"],
  ["attn_v", "self_attn.v_proj"],
  ["attn_qkv", "self_attn.qkv_proj"],
  ["attn_output", "self_attn.o_proj"],
  ["attn_q_norm", "self_attn.q_norm"],
  ["attn_k_norm", "self_attn.k_norm"],
  ["ffn_norm", "post_attention_layernorm"],
  ["ffn_gate", "mlp.gate_proj"],
  ["ffn_up", "mlp.up_proj"],
  ["ffn_down", "mlp.down_proj"],
  ["ffn_gate_inp", "mlp.gate"],
  ["ffn_gate_exps", "mlp.switch_mlp.gate_proj"],
  ["ffn_up_exps", "mlp.switch_mlp.up_proj"],
  ["ffn_down_exps", "mlp.switch_mlp.down_proj"],
]);

/** Names for families with norms before and after attention and MLP: ffn_norm is the one before the MLP. */
const gemma = new Map([
  ["post_attention_norm", "post_attention_layernorm"],
  ["ffn_norm", "pre_feedforward_layernorm"],
  ["post_ffw_norm", "post_feedforward_layernorm"],
]);

const olmo = new Map([
  ["post_attention_norm", "post_attention_layernorm"],
  ["post_ffw_norm", "post_feedforward_layernorm"],
]);

/** Tensor names that differ from the common ones, by model_type. */
const special = new Map([
  ["phi3", new Map([["ffn_up", "mlp.gate_up_proj"]])],
  ["gemma2", gemma],
  ["gemma3_text", gemma],
  ["olmo2", olmo],
  ["olmo3", olmo],
  ...[...ggufFamilies.values()].flatMap(({ modelType, others = [], names = {} }) =>
    [modelType, ...others].map((type) => [type, new Map(Object.entries(names))] as const),
  ),
]);

const specialOutside = new Map(
  [...ggufFamilies.values()].flatMap(({ modelType, others = [], outside: names = {} }) =>
    [modelType, ...others].map((type) => [type, new Map(Object.entries(names))] as const),
  ),
);

/** Ignored tensors: read into the configuration, derived from it, or of multi-token prediction (MTP) layers. */
const ignored =
  /^(?:rope_freqs|rope_factors_(?:long|short)|blk\.\d+\.(?:attn_rot_embd|nextn\.\w+))\.weight$/;

/**
 * Returns undefined for tensors that no architecture reads, such as precomputed frequencies. An unknown name is kept,
 * so that loading fails with this name.
 */
export function huggingFaceName(name: string, modelType: string): string | undefined {
  if (ignored.test(name)) return undefined;
  // The ending, weight or bias, is optional, because a few norms' names lack it.
  const [, layer, part = "", kind = "weight"] =
    /^(?:blk\.(\d+)\.)?([\w.]+?)(?:\.(weight|bias))?$/.exec(name) ?? [];
  const own = special.get(modelType);
  const found =
    layer === undefined
      ? (specialOutside.get(modelType)?.get(part) ?? outside.get(part))
      : (own?.get(`${part}.${kind}`) ?? own?.get(part) ?? inBlock.get(part));
  if (found === undefined) return name;
  const whole = layer === undefined ? found : `model.layers.${layer}.${found}`;
  // A name that ends in a full stop gets no ending; one that ends in _ gets weight or bias without a full stop.
  if (whole.endsWith(".")) return whole.slice(0, -1);
  return `${whole}${whole.endsWith("_") ? "" : "."}${kind}`;
}

/** Whether a tensor belongs to a multi-token prediction (MTP) layer. */
export function predictsFurther(name: string, config: GgufConfig): boolean {
  const { num_hidden_layers: layers, num_nextn_predict_layers: further } = config;
  const layer = Number(/^blk\.(\d+)\./.exec(name)?.[1]);
  return layer >= layers && layer < layers + further;
}

/** Model types whose files store rows of queries and keys as pairs. */
const paired = [
  "llama",
  "granite",
  "mistral",
  "mixtral",
  "smollm3",
  ...Array.from(ggufFamilies.values(), ({ modelType, isPaired }) => (isPaired ? [modelType] : [])),
].flat();

type Order = (index: number) => number;

/** Returns a function that maps a row of the file to a row of the tensor; undefined if no rows are reordered. */
export function rowOrder(
  name: string,
  shape: readonly number[],
  config: GgufConfig,
): Order | undefined {
  return pairedRows(name, shape, config) ?? tiledRows(name, shape, config);
}

/**
 * Returns a function that maps rows of the llama family's files, which store each query and key head as pairs for
 * interleaved RoPE, (heads, D / 2, 2), to Hugging Face's two halves.
 */
function pairedRows(name: string, shape: readonly number[], config: GgufConfig): Order | undefined {
  const [, part] = /\.attn_([qk])\.(?:weight|bias)$/.exec(name) ?? [];
  if (!part || !paired.includes(config.model_type)) return undefined;
  const heads = part === "q" ? config.num_attention_heads : config.num_key_value_heads;
  const { head_dim: size = shape[0]! / heads } = config;
  return (row) => {
    const within = row % size;
    return row - within + (within % 2) * (size / 2) + Math.floor(within / 2);
  };
}

/** Model types whose files interleave value heads: the first of each key head, then the second of each. */
const tiled = Array.from(ggufFamilies.values(), (family) =>
  family.isTiled ? [family.modelType] : [],
).flat();

/** Returns a function from interleaved rows to Hugging Face's, where value heads of a key head are adjacent. */
function groupedHeads(config: GgufConfig, headDim: number): Order {
  const keyHeads = Number(config.linear_num_key_heads);
  const each = Number(config.linear_num_value_heads) / keyHeads;
  return (index) => {
    const head = Math.floor(index / headDim);
    return ((head % keyHeads) * each + Math.floor(head / keyHeads)) * headDim + (index % headDim);
  };
}

function tiledRows(
  name: string,
  [rows = 0]: readonly number[],
  config: GgufConfig,
): Order | undefined {
  if (!tiled.includes(config.model_type)) return undefined;
  const [, part] =
    /^blk\.\d+\.(attn_qkv|attn_gate|ssm_(?:conv1d|alpha|beta|dt|a))(?:\.\w+)?$/.exec(name) ?? [];
  if (!part) return undefined;
  const heads = Number(config.linear_num_value_heads);
  const headDim = Number(config.linear_value_head_dim);
  if (["ssm_alpha", "ssm_beta", "ssm_dt", "ssm_a"].includes(part)) return groupedHeads(config, 1);
  // Only values are reordered; queries and keys precede them.
  const before = part === "attn_gate" ? 0 : rows - heads * headDim;
  const order = groupedHeads(config, headDim);
  return (row) => (row < before ? row : before + order(row - before));
}

/**
 * Returns a function from a column of the file to the input feature that it multiplies; undefined if columns are in
 * order.
 */
export function inputOrder(name: string, config: GgufConfig): Order | undefined {
  if (!tiled.includes(config.model_type) || !/\.ssm_out\.weight$/.test(name)) return undefined;
  return groupedHeads(config, Number(config.linear_value_head_dim));
}
