// GLM 4's first models and GLM Edge: neighbouring features rotate together, half of each head unless it says.
import { share } from "../config.ts";
import { family } from "../family.ts";

export const glmKeys = { partial_rotary_factor: share.default(0.5) };

export const glm = family({ config: glmKeys, design: () => ({ rotatesNeighbours: true }) });
