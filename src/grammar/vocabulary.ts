// A model's tokens as xgrammar expects them: bytes in GPT-2's byte alphabet, for every kind of tokenizer.
import { openTextModel } from "../text/text-model.ts";
import { BYTE_CHARS } from "../text/tokenizer/pre-tokenizer.ts";
import type { Tokenizer } from "../text/tokenizer/tokenizer.ts";
import type { Vocabulary } from "./grammar.ts";

/** Returns one string per token; empty for tokens that must never be sampled. */
export function encodedTokens({ path, size, markers }: Vocabulary): string[] {
  const { tokenizer } = openTextModel(path);
  const shown = new Set(markers.map((marker) => tokenizer.controlTokens.get(marker)));
  return Array.from({ length: size }, (_, id) => {
    if (tokenizer.decoder.isControl(id) && !shown.has(id)) return "";
    return encoded(tokenizer, id);
  });
}

function encoded({ decoder }: Tokenizer, id: number): string {
  let text = "";
  for (const byte of decoder.bytes(id, false) ?? []) text += BYTE_CHARS[byte]!;
  return text;
}
