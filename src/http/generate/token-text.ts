// A single token as text and as bytes, for log-probabilities.
import type { Tokenizer } from "../../text/tokenizer/tokenizer.ts";

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Control tokens yield their written form. */
export function tokenBytes(tokenizer: Tokenizer, token: number): Uint8Array {
  const written = tokenizer.decoder.isControl(token)
    ? undefined
    : tokenizer.decoder.bytes(token, false);
  return written ?? encoder.encode(tokenizer.tokenOf(token) ?? "");
}

/** Incomplete characters become U+FFFD. */
export function tokenText(tokenizer: Tokenizer, token: number): string {
  return decoder.decode(tokenBytes(tokenizer, token));
}

/** JSON cannot express -Infinity; OpenAI sends -9999 for very unlikely tokens. */
export function finiteLogprob(logprob: number): number {
  return Math.max(logprob, -9999);
}
