// Collects the tokens that end a generation from several files of a model, because no single file lists all of them.
import type { Tokenizer } from "./tokenizer/tokenizer.ts";
import type { GgufMetadata } from "./tokenizer-files/gguf-tokenizer.ts";

/** The fields of config.json and generation_config.json that are read here. */
export interface EosConfig {
  eos_token_id?: number | readonly number[] | null;
  /** The language model's part of a multimodal configuration. */
  text_config?: EosConfig | null;
}

export interface StopTokenSources {
  tokenizer: Tokenizer;
  config?: EosConfig | undefined;
  generationConfig?: EosConfig | undefined;
  gguf?: GgufMetadata | undefined;
  /** Source of the chat template. */
  chatTemplate?: string | undefined;
}

/** Names of end-of-turn tokens. */
const END_OF_TURN: readonly string[] = [
  "<|im_end|>",
  "<|eot_id|>",
  "<|eom_id|>",
  "<|eot|>",
  "<end_of_turn>",
  "<turn|>",
  "<|end|>",
  "<|return|>",
  "<|call|>",
  "<|end_of_text|>",
  "<|endoftext|>",
  "<|end_of_turn|>",
  "<｜end▁of▁sentence｜>",
  "<|END_OF_TURN_TOKEN|>",
  "<|endofturn|>",
  "[|endofturn|]",
  "<|assistant_end|>",
  "<|role_end|>",
  "<|end_of_sentence|>",
  "<end_of_sentence>",
  "<seed:eos>",
  "[EOT]",
  "[e~[",
  "</s>",
];
const GGUF_FIELDS = ["eos_token_id", "eot_token_id", "eom_token_id"];

export function stopTokens(sources: StopTokenSources): Set<number> {
  const { tokenizer, chatTemplate } = sources;
  const ids = new Set<number>();
  const add = (id: unknown) => {
    if (typeof id !== "number" && typeof id !== "bigint") return;
    // Ignores ids outside the vocabulary.
    if (tokenizer.tokenOf(Number(id)) !== undefined) ids.add(Number(id));
  };
  const { config: whole, generationConfig } = sources;
  for (const config of [whole, whole?.text_config, generationConfig]) {
    for (const id of [config?.eos_token_id ?? []].flat()) add(id);
  }
  for (const field of GGUF_FIELDS) add(sources.gguf?.get(`tokenizer.ggml.${field}`));
  add(tokenizer.eosId);
  // Some chat models' configs name no end-of-turn token. A candidate counts only if the template contains it and it is
  // a control token: a plain-text token could be part of an answer.
  for (const token of END_OF_TURN) {
    // In formats that end answers in <|return|>, <|end|> only separates the reasoning from the answer.
    if (token === "<|end|>" && tokenizer.controlTokens.has("<|return|>")) continue;
    if (chatTemplate?.includes(token)) add(tokenizer.controlTokens.get(token));
  }
  return ids;
}
