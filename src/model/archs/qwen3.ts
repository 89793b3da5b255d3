// Qwen 3, dense: norms on each head of queries and keys.
import { family } from "../design/family.ts";
import { qwen2 } from "./qwen2.ts";

export const qwen3 = family({ like: qwen2, design: () => ({ headNorms: ["q_norm", "k_norm"] }) });
