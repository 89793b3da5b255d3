// The headers that kernels of this folder include beside those of the host.
import best from "./best.h" with { type: "text" };

export const tokenHeaders: ReadonlyMap<string, string> = new Map([["best.h", best]]);
