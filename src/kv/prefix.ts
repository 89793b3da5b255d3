// The name of a block's content: a hash of its tokens and of the name before it, so that equal tokens
// after different beginnings have different names. The first name comes from the model and a salt:
// requests with different salts never find each other's blocks.
import { BLOCK_TOKENS } from "./blocks.ts";

export function rootKey(model: string, salt: string): string {
  return digest(JSON.stringify([model, salt]));
}

/** The name of the block that holds these tokens, all BLOCK_TOKENS of them, after `parent`. */
export function blockKey(parent: string, tokens: Uint32Array): string {
  if (tokens.length !== BLOCK_TOKENS) throw new Error(`a block of ${tokens.length} tokens`);
  return digest(parent, new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength));
}

/** SHA-256: whoever finds two contents with one name has broken more than a cache. */
function digest(...parts: (string | Uint8Array)[]): string {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const part of parts) hasher.update(part);
  return hasher.digest("base64");
}
