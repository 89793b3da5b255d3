// Builds a model that completes an agent's task: SmolLM2's tokenizer and template, and one layer that only detects
// words. The task's word triggers a recited call, the result's word an answer; each is a single token that no text
// encodes to. Its context is long enough for agents' prompts.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { readGguf } from "../../src/files/gguf.ts";
import { type FileTensor, writeSafetensors } from "../../src/self-test/tiny-weights.ts";
import { BYTE_CHARS } from "../../src/text/tokenizer/pre-tokenizer.ts";
import {
  ggufChatTemplate,
  tokenizerFromGguf,
} from "../../src/text/tokenizer-files/gguf-tokenizer.ts";

export type Recital = {
  /** A word that is one token after a space, and the text recited if the prompt contains it. */
  word: string;
  says: string;
};

const [hidden, heads, headDim] = [64, 8, 8];
/** Residual dimensions: a constant, ordinary tokens, recited tokens, words in the prompt, detected words. */
const [ONE, ORDINARY, RECITED, WORD, FOUND] = [0, 1, 2, 8, 32];
/** The dimension with the slowest RoPE rotation, so that distance does not matter. */
const STILL = headDim / 2 - 1;

/** Later recitals win. `otherwise`: the answer if the prompt contains none of the words. */
export function writeRecitingModel(
  folder: string,
  gguf: string,
  recitals: readonly Recital[],
  otherwise: string,
): void {
  if (recitals.length > heads) throw new Error(`there are ${heads} heads`);
  const { metadata } = readGguf(gguf);
  const strings = (name: string) => Array.from(metadata.get(name) as readonly string[], String);
  const tokens = strings("tokenizer.ggml.tokens");
  const types = Array.from(metadata.get("tokenizer.ggml.token_type") as Int32Array, Number);
  const isControl = (id: number) => types[id] === 3;
  const tokenizer = tokenizerFromGguf(metadata);
  const words = recitals.map(({ word }) => {
    const ids = tokenizer.encode(` ${word}`, { controlTokens: "text" });
    if (ids.length !== 1) throw new Error(`${word} is more than one token`);
    return ids[0]!;
  });
  const said = [...recitals.map(({ says }) => says), otherwise];
  const eos = tokens.indexOf("<|im_end|>");

  mkdirSync(folder, { recursive: true });
  const write = (name: string, value: object) =>
    writeFileSync(join(folder, name), JSON.stringify(value));
  write("config.json", {
    model_type: "llama",
    hidden_size: hidden,
    num_hidden_layers: 1,
    intermediate_size: hidden,
    num_attention_heads: heads,
    num_key_value_heads: heads,
    rms_norm_eps: 1e-5,
    vocab_size: tokens.length + said.length,
    max_position_embeddings: 65_536,
    rope_theta: 1e12,
    tie_word_embeddings: false,
    eos_token_id: eos,
  });
  const plain = tokens.flatMap((content, id) => (isControl(id) ? [] : [[content, id]]));
  const recited = said.map((text, i) => [byteText(text), tokens.length + i]);
  write("tokenizer.json", {
    model: {
      type: "BPE",
      vocab: Object.fromEntries([...plain, ...recited]),
      merges: strings("tokenizer.ggml.merges"),
    },
    pre_tokenizer: {
      type: "Sequence",
      pretokenizers: [
        { type: "Digits", individual_digits: true },
        { type: "ByteLevel", add_prefix_space: false, use_regex: true },
      ],
    },
    decoder: { type: "ByteLevel" },
    added_tokens: tokens.flatMap((content, id) =>
      isControl(id) ? [{ id, content, special: true }] : [],
    ),
  });
  write("tokenizer_config.json", {
    bos_token: "<|im_start|>",
    eos_token: "<|im_end|>",
    chat_template: ggufChatTemplate(metadata),
  });
  writeSafetensors(join(folder, "model.safetensors"), weights(tokens.length, words, eos));
}

/** In the encoding of a byte-level vocabulary. */
function byteText(text: string): string {
  return Array.from(Buffer.from(text), (byte) => BYTE_CHARS[byte]).join("");
}

function weights(ordinary: number, words: readonly number[], eos: number): Map<string, FileTensor> {
  const vocabulary = ordinary + words.length + 1;
  const tensors = new Map<string, FileTensor>();
  /** Zeros except for the given entries. */
  const matrix = (name: string, rows: number, columns: number) => {
    const values = new Float32Array(rows * columns);
    const bytes = new Uint8Array(values.buffer);
    tensors.set(`${name}.weight`, { dtype: "F32", shape: [rows, columns], bytes });
    return (row: number, column: number, value: number) => {
      values[row * columns + column] = value;
    };
  };
  const norm = (name: string) => {
    const bytes = new Uint8Array(new Float32Array(hidden).fill(1).buffer);
    tensors.set(`${name}.weight`, { dtype: "F32", shape: [hidden], bytes });
  };
  const embedding = matrix("model.embed_tokens", vocabulary, hidden);
  for (let token = 0; token < vocabulary; token++) {
    embedding(token, ONE, 1);
    embedding(token, token < ordinary ? ORDINARY : RECITED, 1);
  }
  const layer = "model.layers.0";
  norm(`${layer}.input_layernorm`);
  norm(`${layer}.post_attention_layernorm`);
  norm("model.norm");
  const [q, k, v, o] = ["q", "k", "v", "o"].map((name) =>
    matrix(`${layer}.self_attn.${name}_proj`, hidden, hidden),
  ) as [
    ReturnType<typeof matrix>,
    ReturnType<typeof matrix>,
    ReturnType<typeof matrix>,
    ReturnType<typeof matrix>,
  ];
  for (const name of ["gate", "up", "down"]) matrix(`${layer}.mlp.${name}_proj`, hidden, hidden);
  const head = matrix("lm_head", vocabulary, hidden);
  words.forEach((token, i) => {
    embedding(token, WORD + i, 1);
    // The head attends only to its word, if the prompt contains it.
    q(i * headDim + STILL, ONE, 4);
    k(i * headDim + STILL, WORD + i, 4);
    v(i * headDim, WORD + i, 1);
    o(FOUND + i, i * headDim, 1);
    head(ordinary + i, FOUND + i, 100 * 4 ** (i + 1));
  });
  head(vocabulary - 1, ORDINARY, 100);
  head(eos, RECITED, 1e8);
  return tensors;
}
