// The headers of this folder's kernels; those of the host folder are always available.
import best from "./best.h" with { type: "text" };

export const tokenHeaders: ReadonlyMap<string, string> = new Map([["best.h", best]]);
