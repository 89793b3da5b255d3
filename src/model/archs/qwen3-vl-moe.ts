// Qwen 3 VL with experts: of such a file, the part that reads and writes text, which is Qwen 3's.
import { family, textPart } from "../design/family.ts";
import { qwen3Moe } from "./qwen3-moe.ts";

const text = family({
  like: qwen3Moe,
  design: (_, __, { experts }) => ({ experts: experts && { ...experts, areTransposed: true } }),
});

export const qwen3VlMoe = textPart(text);
