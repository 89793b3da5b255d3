// Qwen 3 VL with experts: of such a file, the part that reads and writes text, which is Qwen 3's.
import { family, textPart } from "../family.ts";
import { qwen3MoeDesign, qwenExperts, qwenMoeConfig } from "./qwen3-moe.ts";

const text = family({
  config: qwenMoeConfig,
  design: (config) => ({
    ...qwen3MoeDesign(config),
    experts: { ...qwenExperts(config), areTransposed: true },
  }),
});

export const qwen3VlMoe = textPart(text);
