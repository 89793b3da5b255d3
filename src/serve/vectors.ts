// Embedding vectors, from the hidden states pooled by the engine.
import type { EngineEvent } from "../engine/protocol.ts";
import type { Embedding } from "../text/embedding.ts";

/** `dimensions` truncates each vector. */
export function vectorsOf(
  events: readonly EngineEvent[],
  { normalize }: Embedding,
  dimensions?: number | undefined,
): Float32Array[] {
  const cut = events.map(({ vector }) => vector!.subarray(0, dimensions ?? vector!.length));
  return normalize ? cut.map(normalized) : cut;
}

/** Cosine similarity of vectors of equal size; 0 if one is zero. */
export function cosine(a: Float32Array, b: Float32Array): number {
  const product = a.reduce((sum, value, i) => sum + value * b[i]!, 0);
  return product / (Math.hypot(...a) * Math.hypot(...b) || 1);
}

/** Scales to an L2 norm of 1. */
function normalized(vector: Float32Array): Float32Array {
  const length = Math.hypot(...vector) || 1;
  return vector.map((value) => value / length);
}
