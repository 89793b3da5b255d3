// The headers of this folder's kernels; those of the host folder are always available.
import moves from "./moves.h" with { type: "text" };
import scan from "./scan.h" with { type: "text" };

export const recurrenceHeaders: ReadonlyMap<string, string> = new Map([
  ["moves.h", moves],
  ["scan.h", scan],
]);
