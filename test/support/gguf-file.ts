// Writes GGUF files (version 3), and knows the names that tensors have in them.
import { writeFileSync } from "node:fs";
import { blockOf, type GgufType } from "../../src/files/gguf.ts";

export type GgufFileTensor = {
  type: GgufType;
  /** Row-major, as we have it everywhere but in the file. */
  shape: readonly number[];
  data: NodeJS.ArrayBufferView;
};

type Scalar = number | boolean | string;
type Value = Scalar | readonly string[] | readonly boolean[] | Int32Array | Float32Array;

export type GgufFile = { metadata: Record<string, Value>; tensors: Record<string, GgufFileTensor> };

const codes: Partial<Record<GgufType, number>> = {
  F32: 0,
  F16: 1,
  Q4_0: 2,
  Q4_1: 3,
  Q8_0: 8,
  Q6_K: 14,
  Q8_1: 9,
  BF16: 30,
  MXFP4: 39,
};

const u32 = (value: number) => Buffer.from(Uint32Array.of(value).buffer);
const u64 = (value: number) => Buffer.from(BigUint64Array.of(BigInt(value)).buffer);
const text = (value: string) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
const bytesOf = ({ buffer, byteOffset, byteLength }: NodeJS.ArrayBufferView) =>
  Buffer.from(buffer, byteOffset, byteLength);
const padded = (bytes: Buffer) => Buffer.concat([bytes, Buffer.alloc(-bytes.length & 31)]);

function typed(value: Value): Buffer[] {
  if (typeof value === "string") return [u32(8), text(value)];
  if (typeof value === "boolean") return [u32(7), Buffer.from([Number(value)])];
  if (typeof value === "number") {
    if (Number.isInteger(value)) return [u32(4), u32(value)];
    return [u32(6), Buffer.from(Float32Array.of(value).buffer)];
  }
  const length = u64(value.length);
  if (value instanceof Int32Array) return [u32(9), u32(5), length, bytesOf(value)];
  if (value instanceof Float32Array) return [u32(9), u32(6), length, bytesOf(value)];
  if (typeof value[0] === "boolean") {
    return [u32(9), u32(7), length, Buffer.from(value.map(Number))];
  }
  return [u32(9), u32(8), length, ...value.map((item) => text(String(item)))];
}

export function writeGguf(path: string, { metadata, tensors }: GgufFile): string {
  const entries = Object.entries(metadata).map(([key, value]) =>
    Buffer.concat([text(key), ...typed(value)]),
  );
  let offset = 0;
  const infos = Object.entries(tensors).map(([name, { type, shape, data }]) => {
    const { items, bytes } = blockOf(type);
    const size = (shape.reduce((a, b) => a * b) / items) * bytes;
    if (data.byteLength !== size) throw new Error(`${name} takes ${size} bytes`);
    const info = [text(name), u32(shape.length), ...shape.toReversed().map(u64)];
    const at = offset;
    offset += padded(bytesOf(data)).length;
    return Buffer.concat([...info, u32(codes[type]!), u64(at)]);
  });
  const start = [Buffer.from("GGUF"), u32(3), u64(infos.length), u64(entries.length)];
  const header = padded(Buffer.concat([...start, ...entries, ...infos]));
  const data = Object.values(tensors).map((tensor) => padded(bytesOf(tensor.data)));
  writeFileSync(path, Buffer.concat([header, ...data]));
  return path;
}

/** As many files as llama.cpp's gguf-split would make; the path of the first. The tensors go in turn to each. */
export function writeGgufParts(
  stem: string,
  { metadata, tensors }: GgufFile,
  count: number,
): [string, ...string[]] {
  const digits = (number: number) => String(number).padStart(5, "0");
  const entries = Object.entries(tensors);
  const paths = Array.from({ length: count }, (_, part) => {
    const split = { "split.no": part, "split.count": count, "split.tensors.count": entries.length };
    return writeGguf(`${stem}-${digits(part + 1)}-of-${digits(count)}.gguf`, {
      metadata: part === 0 ? { ...metadata, ...split } : split,
      tensors: Object.fromEntries(entries.filter((_, i) => i % count === part)),
    });
  });
  return paths as [string, ...string[]];
}

// What gguf-py 0.19.0 lists for each architecture (MODEL_TENSORS), with the names of Hugging Face's
// modules that its tensor_mapping.py gives for them, or MLX's for stacked experts.
const common = {
  attn_norm: "input_layernorm",
  attn_q: "self_attn.q_proj",
  attn_k: "self_attn.k_proj",
  attn_v: "self_attn.v_proj",
  attn_output: "self_attn.o_proj",
  ffn_norm: "post_attention_layernorm",
  ffn_gate: "mlp.gate_proj",
  ffn_up: "mlp.up_proj",
  ffn_down: "mlp.down_proj",
};
const headNorms = { attn_q_norm: "self_attn.q_norm", attn_k_norm: "self_attn.k_norm" };
const { attn_norm, attn_q, attn_k, attn_v, attn_output, ffn_norm } = common;
const { ffn_gate: _gate, ffn_up: _up, ffn_down, ...attention } = common;
const gemma = {
  ...common,
  post_attention_norm: "post_attention_layernorm",
  ffn_norm: "pre_feedforward_layernorm",
  post_ffw_norm: "post_feedforward_layernorm",
};
/** By model_type: GGUF's name in a block -> Hugging Face's. */
export const blockNames: Record<string, Record<string, string>> = {
  llama: common,
  granite: common,
  smollm3: common,
  qwen2: common,
  qwen3: { ...common, ...headNorms },
  qwen3_moe: {
    ...attention,
    ...headNorms,
    ffn_gate_inp: "mlp.gate",
    ffn_gate_exps: "mlp.switch_mlp.gate_proj",
    ffn_up_exps: "mlp.switch_mlp.up_proj",
    ffn_down_exps: "mlp.switch_mlp.down_proj",
  },
  gemma2: gemma,
  gemma3_text: { ...gemma, ...headNorms },
  phi3: {
    attn_norm,
    attn_qkv: "self_attn.qkv_proj",
    attn_output,
    ffn_norm,
    ffn_up: "mlp.gate_up_proj",
    ffn_down,
  },
  olmo2: {
    attn_q,
    attn_k,
    attn_v,
    attn_output,
    ...headNorms,
    post_attention_norm: "post_attention_layernorm",
    ffn_gate: common.ffn_gate,
    ffn_up: common.ffn_up,
    ffn_down,
    post_ffw_norm: "post_feedforward_layernorm",
  },
};
