// Writes a model of a known shape with random weights, in bfloat16 or quantized in groups of 64 as by mlx-lm, for
// benchmarks without real weights:
//
//   bun scripts/bench/random-model.ts <shape> <folder> [--bits 4]
import { closeSync, mkdirSync, openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { toBfloat16 } from "../../src/mlx/dtype.ts";
import { BYTE_CHARS } from "../../src/text/tokenizer/pre-tokenizer.ts";

const shapes = {
  "qwen3-0.6b": {
    model_type: "qwen3",
    hidden_size: 1024,
    num_hidden_layers: 28,
    intermediate_size: 3072,
    num_attention_heads: 16,
    num_key_value_heads: 8,
    head_dim: 128,
    rms_norm_eps: 1e-6,
    vocab_size: 151_936,
    max_position_embeddings: 40_960,
    rope_theta: 1e6,
    tie_word_embeddings: true,
  },
  "llama-3.2-3b": {
    model_type: "llama",
    hidden_size: 3072,
    num_hidden_layers: 28,
    intermediate_size: 8192,
    num_attention_heads: 24,
    num_key_value_heads: 8,
    head_dim: 128,
    rms_norm_eps: 1e-5,
    vocab_size: 128_256,
    max_position_embeddings: 131_072,
    rope_theta: 500_000,
    tie_word_embeddings: true,
  },
  /** Delta nets in three of four layers, and experts. */
  hybrid: {
    model_type: "qwen3_next",
    hidden_size: 2048,
    num_hidden_layers: 24,
    intermediate_size: 512,
    num_attention_heads: 16,
    num_key_value_heads: 2,
    head_dim: 256,
    partial_rotary_factor: 0.25,
    full_attention_interval: 4,
    linear_num_value_heads: 32,
    linear_num_key_heads: 16,
    linear_key_head_dim: 128,
    linear_value_head_dim: 128,
    linear_conv_kernel_dim: 4,
    num_experts: 32,
    num_experts_per_tok: 4,
    moe_intermediate_size: 512,
    shared_expert_intermediate_size: 512,
    norm_topk_prob: true,
    decoder_sparse_step: 1,
    mlp_only_layers: [],
    rms_norm_eps: 1e-6,
    vocab_size: 151_936,
    max_position_embeddings: 40_960,
    rope_theta: 1e6,
    tie_word_embeddings: true,
  },
  /** The same without experts, about 0.5 billion weights. */
  "hybrid-0.5b": {
    model_type: "qwen3_5",
    hidden_size: 1024,
    num_hidden_layers: 24,
    intermediate_size: 2816,
    num_attention_heads: 8,
    num_key_value_heads: 2,
    head_dim: 256,
    full_attention_interval: 4,
    linear_num_value_heads: 16,
    linear_num_key_heads: 8,
    linear_key_head_dim: 128,
    linear_value_head_dim: 128,
    linear_conv_kernel_dim: 4,
    rms_norm_eps: 1e-6,
    vocab_size: 65_536,
    max_position_embeddings: 32_768,
    rope_parameters: { type: "default", rope_theta: 1e6, partial_rotary_factor: 0.25 },
    tie_word_embeddings: true,
  },
  "tiny-hybrid": {
    model_type: "qwen3_5",
    hidden_size: 128,
    num_hidden_layers: 4,
    intermediate_size: 256,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 64,
    full_attention_interval: 2,
    linear_num_value_heads: 4,
    linear_num_key_heads: 2,
    linear_key_head_dim: 32,
    linear_value_head_dim: 32,
    linear_conv_kernel_dim: 4,
    rms_norm_eps: 1e-6,
    vocab_size: 1024,
    max_position_embeddings: 16_384,
    rope_parameters: { type: "default", rope_theta: 1e6, partial_rotary_factor: 0.25 },
    tie_word_embeddings: true,
  },
  /** Latent attention and experts, about 16 billion weights. */
  mla: {
    model_type: "deepseek_v2",
    hidden_size: 2048,
    num_hidden_layers: 27,
    intermediate_size: 10_944,
    num_attention_heads: 16,
    kv_lora_rank: 512,
    qk_rope_head_dim: 64,
    qk_nope_head_dim: 128,
    v_head_dim: 128,
    n_routed_experts: 64,
    num_experts_per_tok: 6,
    moe_intermediate_size: 1408,
    n_shared_experts: 2,
    first_k_dense_replace: 1,
    topk_method: "greedy",
    scoring_func: "softmax",
    norm_topk_prob: false,
    rms_norm_eps: 1e-6,
    vocab_size: 102_400,
    max_position_embeddings: 40_960,
    rope_theta: 10_000,
    tie_word_embeddings: false,
  },
  "tiny-mla": {
    model_type: "deepseek_v2",
    hidden_size: 128,
    num_hidden_layers: 3,
    intermediate_size: 256,
    num_attention_heads: 4,
    kv_lora_rank: 64,
    qk_rope_head_dim: 16,
    qk_nope_head_dim: 32,
    v_head_dim: 32,
    n_routed_experts: 8,
    num_experts_per_tok: 2,
    moe_intermediate_size: 64,
    n_shared_experts: 2,
    first_k_dense_replace: 1,
    topk_method: "greedy",
    scoring_func: "softmax",
    norm_topk_prob: false,
    rms_norm_eps: 1e-6,
    vocab_size: 1024,
    max_position_embeddings: 16_384,
    rope_theta: 10_000,
    tie_word_embeddings: false,
  },
  tiny: {
    model_type: "qwen3",
    hidden_size: 128,
    num_hidden_layers: 2,
    intermediate_size: 256,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 64,
    rms_norm_eps: 1e-6,
    vocab_size: 1024,
    max_position_embeddings: 16_384,
    rope_theta: 1e6,
    tie_word_embeddings: true,
  },
};

type Tensor = { name: string; dtype: "BF16" | "U32"; shape: number[]; source: Uint16Array };

const GROUP_SIZE = 64;
const RANGE = 0.05;

const { values, positionals } = parseArgs({
  options: { bits: { type: "string" } },
  allowPositionals: true,
});
const [name, folder] = positionals;
const config = shapes[name as keyof typeof shapes];
if (!config || !folder) {
  throw new Error(`name a shape (${Object.keys(shapes).join(", ")}) and a folder`);
}
const bits = values.bits === undefined ? undefined : Number(values.bits);
if (bits !== undefined && bits !== 4 && bits !== 8) throw new Error("--bits takes 4 or 8");

const startMs = performance.now();
mkdirSync(folder, { recursive: true });
const quantization = bits && { group_size: GROUP_SIZE, bits };
write("config.json", {
  ...config,
  torch_dtype: "bfloat16",
  ...(quantization && { quantization, quantization_config: quantization }),
});
// Every token has a text, so that a server sends something for each.
write("tokenizer.json", {
  model: { type: "BPE", vocab: vocabulary(), merges: [] },
  pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, use_regex: true },
  decoder: { type: "ByteLevel" },
  added_tokens: [],
});
const bytes = writeTensors(join(folder, "model.safetensors"), tensors());
const seconds = (performance.now() - startMs) / 1000;
console.log(`${folder}: ${(bytes / 1e9).toFixed(2)} GB in ${seconds.toFixed(1)} s`);

function tensors(): Tensor[] {
  // Repeats the same numbers; they only need to be small.
  const noise = bfloat16(2 ** 20, () => (Math.random() - 0.5) * RANGE);
  const ones = bfloat16(2 ** 14, () => 1);
  // Any bits are valid quants; these scales and biases keep weights small.
  const packed = Uint16Array.from({ length: 2 ** 20 }, () => Math.floor(Math.random() * 2 ** 16));
  const scales = bfloat16(2 ** 14, () => RANGE / (2 ** (bits ?? 0) - 1));
  const biases = bfloat16(2 ** 14, () => -RANGE / 2);
  return Object.entries(tensorShapes()).flatMap(([part, shape]): Tensor[] => {
    const weight = /\.(A_log|dt_bias)$/.test(part) ? part : `${part}.weight`;
    if (shape.length === 1) return [{ name: weight, dtype: "BF16", shape, source: ones }];
    const [columns, rows] = [shape.at(-1)!, shape.slice(0, -1)];
    const isPacked = bits && columns % GROUP_SIZE === 0;
    if (!isPacked) return [{ name: weight, dtype: "BF16", shape, source: noise }];
    const groups = [...rows, columns / GROUP_SIZE];
    return [
      { name: weight, dtype: "U32", shape: [...rows, (columns * bits) / 32], source: packed },
      { name: `${part}.scales`, dtype: "BF16", shape: groups, source: scales },
      { name: `${part}.biases`, dtype: "BF16", shape: groups, source: biases },
    ];
  });
}

function tensorShapes(): Record<string, number[]> {
  const { hidden_size: dims } = config;
  const all: Record<string, number[]> = {
    "model.embed_tokens": [config.vocab_size, dims],
    "model.norm": [dims],
    ...(!config.tie_word_embeddings && { lm_head: [config.vocab_size, dims] }),
  };
  for (let layer = 0; layer < config.num_hidden_layers; layer++) {
    const own = {
      input_layernorm: [dims],
      post_attention_layernorm: [dims],
      ...mixerShapes(layer),
      ...mlpShapes(layer),
    };
    for (const [part, shape] of Object.entries(own)) all[`model.layers.${layer}.${part}`] = shape;
  }
  return all;
}

function mixerShapes(layer: number): Record<string, number[]> {
  if ("kv_lora_rank" in config) return latentShapes(config);
  const { hidden_size: dims, head_dim: size } = config;
  const isHybrid = "linear_num_value_heads" in config;
  if (isHybrid && (layer + 1) % config.full_attention_interval !== 0) return deltaShapes(config);
  const [queries, keys] = [config.num_attention_heads * size, config.num_key_value_heads * size];
  return {
    "self_attn.q_proj": [isHybrid ? 2 * queries : queries, dims],
    "self_attn.k_proj": [keys, dims],
    "self_attn.v_proj": [keys, dims],
    "self_attn.o_proj": [dims, queries],
    ...(config.model_type !== "llama" && {
      "self_attn.q_norm": [size],
      "self_attn.k_norm": [size],
    }),
  };
}

function deltaShapes(hybrid: Extract<typeof config, { linear_num_value_heads: number }>) {
  const { hidden_size: dims, linear_num_value_heads: heads, linear_value_head_dim: size } = hybrid;
  const keys = hybrid.linear_num_key_heads * hybrid.linear_key_head_dim;
  const values = heads * size;
  const projections =
    hybrid.model_type === "qwen3_next"
      ? {
          "linear_attn.in_proj_qkvz": [2 * keys + 2 * values, dims],
          "linear_attn.in_proj_ba": [2 * heads, dims],
        }
      : {
          "linear_attn.in_proj_qkv": [2 * keys + values, dims],
          "linear_attn.in_proj_z": [values, dims],
          "linear_attn.in_proj_b": [heads, dims],
          "linear_attn.in_proj_a": [heads, dims],
        };
  return {
    ...projections,
    "linear_attn.conv1d": [2 * keys + values, hybrid.linear_conv_kernel_dim, 1],
    "linear_attn.A_log": [heads],
    "linear_attn.dt_bias": [heads],
    "linear_attn.norm": [size],
    "linear_attn.out_proj": [dims, values],
  };
}

function latentShapes(latent: Extract<typeof config, { kv_lora_rank: number }>) {
  const { hidden_size: dims, num_attention_heads: heads, kv_lora_rank: rank } = latent;
  const { qk_rope_head_dim: rotary, qk_nope_head_dim: plain, v_head_dim: value } = latent;
  return {
    "self_attn.q_proj": [heads * (plain + rotary), dims],
    "self_attn.kv_a_proj_with_mqa": [rank + rotary, dims],
    "self_attn.kv_a_layernorm": [rank],
    "self_attn.kv_b_proj": [heads * (plain + value), rank],
    "self_attn.o_proj": [dims, heads * value],
  };
}

function mlpShapes(layer: number): Record<string, number[]> {
  const { hidden_size: dims, intermediate_size: inner } = config;
  if ("n_routed_experts" in config && layer >= config.first_k_dense_replace) {
    const { n_routed_experts: experts, moe_intermediate_size: each } = config;
    return {
      ...expertShapes(experts, each, dims),
      ...gatedShapes("mlp.shared_experts", config.n_shared_experts * each, dims),
    };
  }
  if (!("num_experts" in config)) return gatedShapes("mlp", inner, dims);
  return {
    ...expertShapes(config.num_experts, config.moe_intermediate_size, dims),
    "mlp.shared_expert_gate": [1, dims],
    ...gatedShapes("mlp.shared_expert", config.shared_expert_intermediate_size, dims),
  };
}

function gatedShapes(name: string, inner: number, dims: number): Record<string, number[]> {
  return {
    [`${name}.gate_proj`]: [inner, dims],
    [`${name}.up_proj`]: [inner, dims],
    [`${name}.down_proj`]: [dims, inner],
  };
}

function expertShapes(experts: number, each: number, dims: number): Record<string, number[]> {
  return {
    "mlp.gate": [experts, dims],
    "mlp.switch_mlp.gate_proj": [experts, each, dims],
    "mlp.switch_mlp.up_proj": [experts, each, dims],
    "mlp.switch_mlp.down_proj": [experts, dims, each],
  };
}

/** The bytes of the tensors. */
function writeTensors(path: string, all: readonly Tensor[]): number {
  let end = 0;
  const header = all.map(({ name, dtype, shape }) => {
    const begin = end;
    end += 2 * halves({ dtype, shape });
    return [name, { dtype, shape, data_offsets: [begin, end] }];
  });
  const text = Buffer.from(JSON.stringify(Object.fromEntries(header)));
  const file = openSync(path, "w");
  writeSync(file, Buffer.from(BigUint64Array.of(BigInt(text.length)).buffer));
  writeSync(file, text);
  for (const { source, ...tensor } of all) {
    for (let left = halves(tensor); left > 0; left -= source.length) {
      writeSync(file, source.subarray(0, Math.min(left, source.length)));
    }
  }
  closeSync(file);
  return end;
}

/** Number of two-byte units. */
function halves({ dtype, shape }: Pick<Tensor, "dtype" | "shape">): number {
  return shape.reduce((a, b) => a * b) * (dtype === "U32" ? 2 : 1);
}

function bfloat16(count: number, value: () => number): Uint16Array {
  const made = new Uint16Array(count);
  toBfloat16(Float32Array.from({ length: count }, value), made);
  return made;
}

/** All bytes, then a space and a number each. */
function vocabulary(): Record<string, number> {
  const text = (id: number) => BYTE_CHARS[id] ?? BYTE_CHARS[0x20]! + id.toString(36);
  return Object.fromEntries(Array.from({ length: config.vocab_size }, (_, id) => [text(id), id]));
}

function write(file: string, value: unknown): void {
  writeFileSync(join(folder!, file), JSON.stringify(value));
}
