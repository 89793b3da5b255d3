// Headers that this folder's kernels include, in addition to those of the host folder.
import best from "./best.h" with { type: "text" };

export const tokenHeaders: ReadonlyMap<string, string> = new Map([["best.h", best]]);
