// Computes embedding vectors from the hidden states that the engine has pooled.
import type { EngineEvent } from "../engine/protocol.ts";
import type { Embedding } from "../text/embedding.ts";

/** Returns the vector of each event; `dimensions` truncates the vectors. */
export function vectorsOf(
  events: readonly EngineEvent[],
  { normalize }: Embedding,
  dimensions?: number | undefined,
): Float32Array[] {
  const cut = events.map(({ vector }) => vector!.subarray(0, dimensions ?? vector!.length));
  return normalize ? cut.map(normalized) : cut;
}

/** Returns the cosine similarity of two vectors of equal size; 0 if one is zero. */
export function cosine(a: Float32Array, b: Float32Array): number {
  const product = a.reduce((sum, value, i) => sum + value * b[i]!, 0);
  return product / (Math.hypot(...a) * Math.hypot(...b) || 1);
}

/** Scales a vector to an L2 norm of 1. */
function normalized(vector: Float32Array): Float32Array {
  const length = Math.hypot(...vector) || 1;
  return vector.map((value) => value / length);
}
