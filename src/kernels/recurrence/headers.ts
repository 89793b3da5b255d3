// Headers that this folder's kernels include, in addition to those of the host folder.
import moves from "./moves.h" with { type: "text" };
import scan from "./scan.h" with { type: "text" };

export const recurrenceHeaders: ReadonlyMap<string, string> = new Map([
  ["moves.h", moves],
  ["scan.h", scan],
]);
