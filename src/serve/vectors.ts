// Embeddings of texts, from what the engine pools of their prompts.
import type { EngineEvent } from "../engine/protocol.ts";
import type { Embedding } from "../text/embedding.ts";

/** `dimensions` cuts each vector to its first numbers. */
export function vectorsOf(
  events: readonly EngineEvent[],
  { normalize }: Embedding,
  dimensions?: number | undefined,
): Float32Array[] {
  const cut = events.map(({ vector }) => vector!.subarray(0, dimensions ?? vector!.length));
  return normalize ? cut.map(normalized) : cut;
}

/** Of two vectors as long as each other; 0 if one has no direction. */
export function cosine(a: Float32Array, b: Float32Array): number {
  const product = a.reduce((sum, value, i) => sum + value * b[i]!, 0);
  return product / (Math.hypot(...a) * Math.hypot(...b) || 1);
}

/** Scaled to length 1. */
function normalized(vector: Float32Array): Float32Array {
  const length = Math.hypot(...vector) || 1;
  return vector.map((value) => value / length);
}
