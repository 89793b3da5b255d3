// Qwen 3, its dense models: queries and keys are normed, head by head.
import { family } from "../design/family.ts";
import { qwen2 } from "./qwen2.ts";

export const qwen3 = family({ like: qwen2, design: () => ({ headNorms: ["q_norm", "k_norm"] }) });
