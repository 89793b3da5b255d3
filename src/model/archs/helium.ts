// Helium and ERNIE 4.5: Llama whose neighbouring features rotate together.
import { family } from "../design/family.ts";

export const helium = family({
  // Some of ERNIE's files have gate and up in one matrix.
  names: { ".mlp.up_gate_proj.": ".mlp.gate_up_proj." },
  design: () => ({ rotatesNeighbours: true }),
});
