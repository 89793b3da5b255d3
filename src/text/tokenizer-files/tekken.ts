// Mistral's tekken.json: byte sequences, ranked as in tiktoken. Control tokens have the first ids, ranks follow.
import { z } from "zod";
import { LoadError } from "../../files/load-error.ts";
import type { Tokenizer } from "../tokenizer/tokenizer.ts";
import type { AddedTokenJson, TokenizerConfigJson } from "../tokenizer/tokenizer-json.ts";
import { rankedTokenizer, spelled } from "./tiktoken.ts";

const size = z
  .int()
  .min(0)
  .max(2 ** 24);
const Tekken = z.object({
  config: z.object({
    pattern: z.string(),
    default_vocab_size: size,
    default_num_special_tokens: size,
  }),
  vocab: z.array(z.object({ rank: size, token_bytes: z.base64() })),
  special_tokens: z.array(z.object({ rank: size, token_str: z.string() })).nullish(),
});

/** Control tokens of files that list none. */
const OLD_CONTROL = [
  ...["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"],
  ...["[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"],
  ...["[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"],
  "[TOOL_CONTENT]",
];

export function tokenizerFromTekken(json: unknown, config: TokenizerConfigJson): Tokenizer {
  const { data, error } = Tekken.safeParse(json);
  if (error) {
    const { path, message } = error.issues[0]!;
    throw new LoadError(`${path.join(".")}: ${message}`);
  }
  const { pattern, default_vocab_size: total, default_num_special_tokens: first } = data.config;
  const listed =
    data.special_tokens?.map(({ token_str }) => token_str) ?? OLD_CONTROL.slice(0, first);
  const control = Array.from({ length: first }, (_, id): AddedTokenJson => {
    return { id, content: listed[id] ?? `<SPECIAL_${id}>`, special: true };
  });
  const kept = data.vocab.slice(0, Math.max(0, total - first));
  const ranks = new Map(
    kept.map(({ token_bytes, rank }) => [
      spelled(Buffer.from(token_bytes, "base64")),
      first + rank,
    ]),
  );
  return rankedTokenizer({
    ranks,
    pattern,
    added: control,
    isComposed: false,
    before: config.add_bos_token === false ? [] : ["<s>"],
    config: { bos_token: "<s>", eos_token: "</s>", unk_token: "<unk>", ...config },
  });
}
