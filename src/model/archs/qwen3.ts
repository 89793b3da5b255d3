// Qwen 3, its dense models: queries and keys are normed, head by head.
import { family } from "../family.ts";
import { qwenDesign, qwenKeys } from "./qwen2.ts";

export const qwen3 = family({
  config: qwenKeys,
  design: (config) => ({ ...qwenDesign(config), headNorms: ["q_norm", "k_norm"] }),
});
