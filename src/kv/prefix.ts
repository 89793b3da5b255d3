// Keys of the prefix cache. A block's key hashes its tokens and the key of its predecessor, so equal tokens after
// different prefixes have different keys. The root key comes from the model and a salt: requests with different
// salts never share blocks.
import { BLOCK_TOKENS } from "./blocks.ts";

export function rootKey(model: string, salt: string): string {
  return digest(JSON.stringify([model, salt]));
}

/** Returns the key of a full block of `tokens`; `parent` is the key of the block before. */
export function blockKey(parent: string, tokens: Uint32Array): string {
  if (tokens.length !== BLOCK_TOKENS)
    throw new Error(`a full block has ${BLOCK_TOKENS} tokens, not ${tokens.length}`);
  return digest(parent, new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength));
}

/** Hashes with SHA-256, because a collision would serve one client another client's prefix. */
function digest(...parts: (string | Uint8Array)[]): string {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const part of parts) hasher.update(part);
  return hasher.digest("base64");
}
