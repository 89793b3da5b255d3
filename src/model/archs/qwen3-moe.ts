// Qwen 3 with experts in most layers.
import { family } from "../design/family.ts";
import { qwen2Moe } from "./qwen2-moe.ts";

export const qwen3Moe = family({
  like: qwen2Moe,
  defaults: { shared_expert_intermediate_size: 0 },
  design: ({ use_sliding_window }, _, { experts }) => ({
    slides: () => use_sliding_window === true,
    headNorms: ["q_norm", "k_norm"],
    experts: experts && { ...experts, shared: undefined },
  }),
});
