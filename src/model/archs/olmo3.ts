// OLMo 3: OLMo 2 with a window in three layers of four.
import { family } from "../family.ts";
import { olmoDesign } from "./olmo2.ts";

export const olmo3 = family({
  design: (config, weights) => ({
    ...olmoDesign(config, weights),
    slides: (layer) => (layer + 1) % 4 !== 0,
  }),
});
