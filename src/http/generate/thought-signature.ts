// The signature of a thought in Anthropic's API. Clients return it unchanged with the thought. If a client wants
// no thoughts, the signature carries the thought itself, so that the model has it in the next turn.
import { createHash } from "node:crypto";

const [HASH, TEXT] = ["mlx-hash:", "mlx-text:"];

export function signatureOf(thought: string, isOmitted: boolean): string {
  if (isOmitted) return TEXT + Buffer.from(thought).toString("base64");
  return HASH + createHash("sha256").update(thought).digest("base64");
}

/** The thought as the model wrote it. */
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
