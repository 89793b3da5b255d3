// The headers that kernels of this folder include beside those of the host.
import moves from "./moves.h" with { type: "text" };
import scan from "./scan.h" with { type: "text" };

export const recurrenceHeaders: ReadonlyMap<string, string> = new Map([
  ["moves.h", moves],
  ["scan.h", scan],
]);
