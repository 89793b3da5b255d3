// GLM 4's first models and GLM Edge: neighbouring features rotate together, by default half of each head.
import { family } from "../design/family.ts";

export const glm = family({
  defaults: { partial_rotary_factor: 0.5 },
  design: () => ({ rotatesNeighbours: true }),
});
