// The signature of a thought in Anthropic's API, which clients return unchanged. For clients that omit thoughts, the
// signature contains the thought itself, so that the model sees it in the next turn.
import { createHash } from "node:crypto";

const [HASH, TEXT] = ["mlx-hash:", "mlx-text:"];

export function signatureOf(thought: string, isOmitted: boolean): string {
  if (isOmitted) return TEXT + Buffer.from(thought).toString("base64");
  return HASH + createHash("sha256").update(thought).digest("base64");
}

/** Restores the thought from the text or the signature that the client sent back. */
export function thoughtOf({
  thinking,
  signature,
}: {
  thinking: string;
  signature: string;
}): string {
  if (thinking !== "" || !signature.startsWith(TEXT)) return thinking;
  return Buffer.from(signature.slice(TEXT.length), "base64").toString();
}
