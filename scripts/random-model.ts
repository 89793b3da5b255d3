// Writes a model of a known shape with random weights in bfloat16, for measurements where no real ones
// are at hand: `bun scripts/random-model.ts <shape> <folder>`
import { closeSync, mkdirSync, openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { toBfloat16 } from "../src/mlx/dtype.ts";

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
};

const [name, folder] = process.argv.slice(2);
const config = shapes[name as keyof typeof shapes];
if (!config || !folder) {
  throw new Error(`name a shape (${Object.keys(shapes).join(", ")}) and a folder`);
}
mkdirSync(folder, { recursive: true });
writeFileSync(join(folder, "config.json"), JSON.stringify({ ...config, torch_dtype: "bfloat16" }));

const tensors = Object.entries(tensorShapes());
let end = 0;
const header = tensors.map(([tensor, shape]) => {
  const begin = end;
  end += 2 * sizeOf(shape);
  return [tensor, { dtype: "BF16", shape, data_offsets: [begin, end] }];
});
const text = Buffer.from(JSON.stringify(Object.fromEntries(header)));
const file = openSync(join(folder, "model.safetensors"), "w");
writeSync(file, Buffer.from(BigUint64Array.of(BigInt(text.length)).buffer));
writeSync(file, text);
// The same numbers again and again: what they are does not matter, only that they are small.
const noise = bfloat16(2 ** 20, () => (Math.random() - 0.5) * 0.05);
const ones = bfloat16(2 ** 14, () => 1);
for (const [, shape] of tensors) {
  const source = shape.length === 1 ? ones : noise;
  for (let left = sizeOf(shape); left > 0; left -= source.length) {
    writeSync(file, source.subarray(0, Math.min(left, source.length)));
  }
}
closeSync(file);

function tensorShapes(): Record<string, number[]> {
  const { hidden_size: dims, intermediate_size: inner, head_dim: size } = config;
  const [queries, keys] = [config.num_attention_heads * size, config.num_key_value_heads * size];
  const all: Record<string, number[]> = {
    "model.embed_tokens.weight": [config.vocab_size, dims],
    "model.norm.weight": [dims],
  };
  for (let layer = 0; layer < config.num_hidden_layers; layer++) {
    const own: Record<string, number[]> = {
      input_layernorm: [dims],
      post_attention_layernorm: [dims],
      "self_attn.q_proj": [queries, dims],
      "self_attn.k_proj": [keys, dims],
      "self_attn.v_proj": [keys, dims],
      "self_attn.o_proj": [dims, queries],
      "mlp.gate_proj": [inner, dims],
      "mlp.up_proj": [inner, dims],
      "mlp.down_proj": [dims, inner],
      ...(config.model_type === "qwen3" && {
        "self_attn.q_norm": [size],
        "self_attn.k_norm": [size],
      }),
    };
    for (const [part, shape] of Object.entries(own)) {
      all[`model.layers.${layer}.${part}.weight`] = shape;
    }
  }
  return all;
}

function sizeOf(shape: readonly number[]): number {
  return shape.reduce((a, b) => a * b);
}

function bfloat16(count: number, value: () => number): Uint16Array {
  const made = new Uint16Array(count);
  toBfloat16(Float32Array.from({ length: count }, value), made);
  return made;
}
