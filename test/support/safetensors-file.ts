// Writes safetensors files, and the tensors of a small Llama for them.
import { closeSync, mkdirSync, openSync, truncateSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import type { SafetensorsDtype } from "../../src/files/safetensors.ts";
import { toBfloat16 } from "../../src/mlx/dtype.ts";

export type FileTensor = {
  dtype: SafetensorsDtype;
  shape: readonly number[];
  /** Its numbers, or what makes them when their turn comes. */
  data: NodeJS.ArrayBufferView | (() => NodeJS.ArrayBufferView);
};

export type FileTensors = Record<string, FileTensor>;

const itemBytes: Partial<Record<SafetensorsDtype, number>> = {
  F32: 4,
  F16: 2,
  BF16: 2,
  U32: 4,
  U8: 1,
  I64: 8,
  I32: 4,
  I8: 1,
  F8_E4M3: 1,
  F8_E5M2: 1,
};

function writeSafetensors(path: string, tensors: FileTensors): void {
  let end = 0;
  const entries = Object.entries(tensors).map(([name, { dtype, shape }]) => {
    const begin = end;
    end += shape.reduce((a, b) => a * b, itemBytes[dtype]!);
    return [name, { dtype, shape, data_offsets: [begin, end] }];
  });
  const header = Buffer.from(JSON.stringify(Object.fromEntries(entries)));
  const fd = openSync(path, "w");
  writeSync(fd, BigUint64Array.of(BigInt(header.length)));
  writeSync(fd, header);
  for (const { data } of Object.values(tensors)) {
    writeSync(fd, typeof data === "function" ? data() : data);
  }
  closeSync(fd);
}

/** A model's folder: config.json and one file, or as many shards. */
export function writeFolder(folder: string, config: object, tensors: FileTensors, shards = 1) {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  if (shards === 1) {
    writeSafetensors(join(folder, "model.safetensors"), tensors);
    return folder;
  }
  const shardOf = (i: number) => `model-${i % shards}.safetensors`;
  const entries = Object.entries(tensors);
  for (let shard = 0; shard < shards; shard++) {
    const own = entries.filter((_, i) => i % shards === shard);
    writeSafetensors(join(folder, shardOf(shard)), Object.fromEntries(own));
  }
  const weightMap = Object.fromEntries(entries.map(([name], i) => [name, shardOf(i)]));
  writeFileSync(
    join(folder, "model.safetensors.index.json"),
    JSON.stringify({ weight_map: weightMap }),
  );
  return folder;
}

/** A folder whose weights are holes in a file: it has their size and takes no space. */
export function writeHollowFolder(
  folder: string,
  config: object,
  shapes: ReadonlyMap<string, readonly number[]>,
): string {
  let end = 0;
  const entries = Array.from(shapes, ([name, shape]) => {
    const begin = end;
    end += shape.reduce((a, b) => a * b, 4);
    return [name, { dtype: "F32", shape, data_offsets: [begin, end] }];
  });
  const header = Buffer.from(JSON.stringify(Object.fromEntries(entries)));
  const path = join(folder, "model.safetensors");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  writeFileSync(
    path,
    Buffer.concat([Buffer.from(BigUint64Array.of(BigInt(header.length)).buffer), header]),
  );
  truncateSync(path, 8 + header.length + end);
  return folder;
}

/** The same numbers every time, in -scale to scale. */
export function randomNumbers(count: number, seed = 1, scale = 1): Float32Array {
  let state = seed * 2654435761;
  const made = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    made[i] = ((state >>> 8) / 2 ** 23 - 1) * scale;
  }
  return made;
}

export function f32(shape: readonly number[], values: Float32Array): FileTensor {
  return { dtype: "F32", shape, data: values };
}

export function f16(shape: readonly number[], values: Float32Array): FileTensor {
  return { dtype: "F16", shape, data: new Float16Array(values) };
}

export function bf16(shape: readonly number[], values: Float32Array): FileTensor {
  const bits = new Uint16Array(values.length);
  toBfloat16(values, bits);
  return { dtype: "BF16", shape, data: bits };
}

/** A Llama of a few thousand numbers. */
export const tinyConfig = {
  model_type: "llama",
  hidden_size: 64,
  intermediate_size: 96,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  rms_norm_eps: 1e-5,
  vocab_size: 80,
  max_position_embeddings: 128,
  tie_word_embeddings: false,
};

/** Its tensors' names and shapes, as Hugging Face has them. */
export function llamaShapes(config: typeof tinyConfig): Map<string, number[]> {
  const { hidden_size: dims, intermediate_size: hidden, vocab_size: vocabulary } = config;
  const kv = (dims / config.num_attention_heads) * config.num_key_value_heads;
  const layers = Array.from({ length: config.num_hidden_layers }, (_, layer) =>
    Object.entries({
      "self_attn.q_proj": [dims, dims],
      "self_attn.k_proj": [kv, dims],
      "self_attn.v_proj": [kv, dims],
      "self_attn.o_proj": [dims, dims],
      "mlp.gate_proj": [hidden, dims],
      "mlp.up_proj": [hidden, dims],
      "mlp.down_proj": [dims, hidden],
      input_layernorm: [dims],
      post_attention_layernorm: [dims],
    }).map(([part, shape]) => [`model.layers.${layer}.${part}.weight`, shape] as const),
  );
  const all = new Map<string, number[]>([
    ["model.embed_tokens.weight", [vocabulary, dims]],
    ...layers.flat(),
    ["model.norm.weight", [dims]],
  ]);
  if (!config.tie_word_embeddings) all.set("lm_head.weight", [vocabulary, dims]);
  return all;
}

export function tinyTensors(config = tinyConfig, store = f32): FileTensors {
  const made: FileTensors = {};
  let seed = 1;
  for (const [name, shape] of llamaShapes(config)) {
    const size = shape.reduce((a, b) => a * b);
    made[name] = store(shape, randomNumbers(size, seed++, 0.3));
  }
  return made;
}
