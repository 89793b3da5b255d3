// One token as text and as bytes, for those who look at log-probabilities.
import type { Tokenizer } from "../text/tokenizer.ts";

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Control tokens as they are written. */
export function tokenBytes(tokenizer: Tokenizer, token: number): Uint8Array {
  const written = tokenizer.decoder.isControl(token)
    ? undefined
    : tokenizer.decoder.bytes(token, false);
  return written ?? encoder.encode(tokenizer.tokenOf(token) ?? "");
}

/** Half a character is U+FFFD. */
export function tokenText(tokenizer: Tokenizer, token: number): string {
  return decoder.decode(tokenBytes(tokenizer, token));
}

/** JSON has no minus infinity; OpenAI sends this for what is as good as impossible. */
export function finiteLogprob(logprob: number): number {
  return Math.max(logprob, -9999);
}
