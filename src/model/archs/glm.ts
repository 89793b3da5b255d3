// GLM 4's first models and GLM Edge: neighbouring features rotate together, half of each head unless it says.
import { family } from "../design/family.ts";

export const glm = family({
  defaults: { partial_rotary_factor: 0.5 },
  design: () => ({ rotatesNeighbours: true }),
});
