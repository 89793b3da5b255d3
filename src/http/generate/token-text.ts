// A single token as text and as bytes, for log-probabilities.
import type { Tokenizer } from "../../text/tokenizer/tokenizer.ts";

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Returns a token's bytes; for a control token, its name in the vocabulary, such as <|im_end|>. */
export function tokenBytes(tokenizer: Tokenizer, token: number): Uint8Array {
  const written = tokenizer.decoder.isControl(token)
    ? undefined
    : tokenizer.decoder.bytes(token, false);
  return written ?? encoder.encode(tokenizer.tokenOf(token) ?? "");
}

/** Returns a token's text, with U+FFFD for incomplete characters. */
export function tokenText(tokenizer: Tokenizer, token: number): string {
  return decoder.decode(tokenBytes(tokenizer, token));
}

/** Makes a log-probability finite: JSON cannot express -Infinity; OpenAI sends -9999 for very unlikely tokens. */
export function finiteLogprob(logprob: number): number {
  return Math.max(logprob, -9999);
}
