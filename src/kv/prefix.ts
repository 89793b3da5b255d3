// The prefix cache's keys. A block's key is a hash of its tokens and of the key of the block before it,
// so that equal tokens after different prefixes have different keys. The root key comes from the model
// and a salt: requests with different salts never share blocks.
import { BLOCK_TOKENS } from "./blocks.ts";

export function rootKey(model: string, salt: string): string {
  return digest(JSON.stringify([model, salt]));
}

/** The key of a full block with these tokens, after the block with the key `parent`. */
export function blockKey(parent: string, tokens: Uint32Array): string {
  if (tokens.length !== BLOCK_TOKENS)
    throw new Error(`a full block has ${BLOCK_TOKENS} tokens, not ${tokens.length}`);
  return digest(parent, new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength));
}

/** SHA-256, because a collision would serve one client the tokens of another. */
function digest(...parts: (string | Uint8Array)[]): string {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const part of parts) hasher.update(part);
  return hasher.digest("base64");
}
