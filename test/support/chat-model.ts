// A tiny model that can be talked to: a llama of two layers with random weights, a byte-level tokenizer
// with every byte, and a chat template. What it says makes no sense, but is the same each time, and any
// byte may come: half characters, control bytes, all of it.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type FileTensor, writeSafetensors } from "../../src/self-test/tiny-weights.ts";
import { BYTE_CHARS } from "../../src/text/tokenizer/pre-tokenizer.ts";
import { makeRandom } from "./random.ts";

const [layers, hidden, inner, heads, kvHeads, vocabulary] = [2, 64, 96, 4, 2, 320];
const headDim = hidden / heads;

const controlTokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] as const;

const chatTemplate = `{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`;

export type ChatModelOptions = {
  maxPositions?: number;
  /** Writes sentence-transformers' files too. */
  pooling?: "lasttoken" | "mean_tokens";
  /** Weights that are no numbers. */
  broken?: boolean;
  /** A token that has no numbers: whatever comes after it has none either. */
  numberlessToken?: number;
  /** Says this over and over, a byte a token; no byte may be in it twice. */
  recites?: string;
};

/** Writes the folder of one. */
export function writeChatModel(folder: string, options: ChatModelOptions = {}): void {
  const { maxPositions = 4096, pooling } = options;
  mkdirSync(folder, { recursive: true });
  const write = (name: string, value: unknown) =>
    writeFileSync(join(folder, name), JSON.stringify(value));
  write("config.json", {
    model_type: "llama",
    hidden_size: hidden,
    num_hidden_layers: layers,
    intermediate_size: inner,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    rms_norm_eps: 1e-5,
    vocab_size: vocabulary,
    max_position_embeddings: maxPositions,
    rope_theta: 10000,
    tie_word_embeddings: !hasOwnHead(options),
    eos_token_id: 258,
  });
  const bytes = BYTE_CHARS.map((char, id) => [char, id] as const);
  write("tokenizer.json", {
    model: { type: "BPE", vocab: Object.fromEntries(bytes), merges: [] },
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, use_regex: true },
    decoder: { type: "ByteLevel" },
    added_tokens: controlTokens.map((content, i) => ({ id: 256 + i, content, special: true })),
  });
  const [bos_token, eos_token] = ["<|im_start|>", "<|im_end|>"];
  write("tokenizer_config.json", { bos_token, eos_token, chat_template: chatTemplate });
  writeSafetensors(join(folder, "model.safetensors"), weights(options));
  if (!pooling) return;
  mkdirSync(join(folder, "1_Pooling"));
  write("1_Pooling/config.json", { [`pooling_mode_${pooling}`]: true });
  write("modules.json", [
    { type: "sentence_transformers.models.Transformer", path: "" },
    { type: "sentence_transformers.models.Pooling", path: "1_Pooling" },
    { type: "sentence_transformers.models.Normalize", path: "2_Normalize" },
  ]);
}

/** Whether tokens are read by other numbers than they are chosen by. */
function hasOwnHead({ numberlessToken, recites }: ChatModelOptions): boolean {
  return numberlessToken !== undefined || recites !== undefined;
}

function weights(options: ChatModelOptions): Map<string, FileTensor> {
  const { broken, numberlessToken, recites } = options;
  const random = makeRandom(17);
  const tensors = new Map<string, FileTensor>();
  const add = (name: string, shape: number[], value: () => number): Float32Array => {
    const count = shape.reduce((product, size) => product * size, 1);
    const values = Float32Array.from({ length: count }, value);
    tensors.set(name, { dtype: "F32", shape, bytes: new Uint8Array(values.buffer) });
    return values;
  };
  const matrix = (name: string, rows: number, columns: number) =>
    add(`${name}.weight`, [rows, columns], () => random.below(2 ** 16) / 2 ** 17 - 0.25);
  const norm = (name: string) => add(`${name}.weight`, [hidden], () => (broken ? Number.NaN : 1));
  const embedding = matrix("model.embed_tokens", vocabulary, hidden);
  const rowOf = (token: number) => embedding.subarray(token * hidden, (token + 1) * hidden);
  for (let layer = 0; layer < layers; layer++) {
    const name = `model.layers.${layer}`;
    norm(`${name}.input_layernorm`);
    norm(`${name}.post_attention_layernorm`);
    matrix(`${name}.self_attn.q_proj`, heads * headDim, hidden);
    matrix(`${name}.self_attn.k_proj`, kvHeads * headDim, hidden);
    matrix(`${name}.self_attn.v_proj`, kvHeads * headDim, hidden);
    matrix(`${name}.self_attn.o_proj`, hidden, heads * headDim);
    matrix(`${name}.mlp.gate_proj`, inner, hidden);
    matrix(`${name}.mlp.up_proj`, inner, hidden);
    matrix(`${name}.mlp.down_proj`, hidden, inner);
  }
  norm("model.norm");
  if (!hasOwnHead(options)) return tensors;
  const head = matrix("lm_head", vocabulary, hidden);
  if (numberlessToken !== undefined) rowOf(numberlessToken).fill(Number.NaN);
  if (recites !== undefined) {
    // The layers add nothing, and the likeliest token is the one whose row is its predecessor's.
    for (const [name, { bytes }] of tensors) if (/\.(o|down)_proj\./.test(name)) bytes.fill(0);
    const said = [...Buffer.from(recites)];
    for (const [i, byte] of said.entries()) head.set(rowOf(said.at(i - 1)!), byte * hidden);
    // A prompt ends with a new line.
    const first = head.subarray(said[0]! * hidden, (said[0]! + 1) * hidden);
    rowOf(0x0a).forEach((value, i) => {
      first[i]! += value;
    });
  }
  return tensors;
}
