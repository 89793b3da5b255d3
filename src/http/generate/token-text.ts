// One token as text and as bytes, for log-probabilities.
import type { Tokenizer } from "../../text/tokenizer/tokenizer.ts";

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Control tokens are written out. */
export function tokenBytes(tokenizer: Tokenizer, token: number): Uint8Array {
  const written = tokenizer.decoder.isControl(token)
    ? undefined
    : tokenizer.decoder.bytes(token, false);
  return written ?? encoder.encode(tokenizer.tokenOf(token) ?? "");
}

/** An incomplete character is U+FFFD. */
export function tokenText(tokenizer: Tokenizer, token: number): string {
  return decoder.decode(tokenBytes(tokenizer, token));
}

/** JSON has no minus infinity; OpenAI sends -9999 for very unlikely tokens. */
export function finiteLogprob(logprob: number): number {
  return Math.max(logprob, -9999);
}
