// The headers of this folder's kernels.
import promptHeads from "./prompt-heads.h" with { type: "text" };
import quantized from "./quantized.h" with { type: "text" };
import warpgroupSums from "./warpgroup-sums.h" with { type: "text" };

export const productHeaders: ReadonlyMap<string, string> = new Map([
  ["prompt-heads.h", promptHeads],
  ["quantized.h", quantized],
  ["warpgroup-sums.h", warpgroupSums],
]);
