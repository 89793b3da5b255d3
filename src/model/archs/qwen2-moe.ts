// Qwen 1.5's and 2's mixtures of experts: beside them a wider one that all tokens go through, with a gate.
import { count } from "../config.ts";
import { family } from "../family.ts";
import { qwenDesign } from "./qwen2.ts";
import { qwenExperts, qwenMoeConfig } from "./qwen3-moe.ts";

export const qwen2Moe = family({
  config: { ...qwenMoeConfig, shared_expert_intermediate_size: count },
  design: (config) => ({
    ...qwenDesign(config),
    experts: qwenExperts(config, config.shared_expert_intermediate_size),
  }),
});
