// OLMo 3: OLMo 2 with a window in three layers of four.
import { family } from "../design/family.ts";
import { olmo2 } from "./olmo2.ts";

export const olmo3 = family({
  like: olmo2,
  design: () => ({ slides: (layer) => (layer + 1) % 4 !== 0 }),
});
