// Hunyuan's dense models: norms on queries and keys, behind RoPE.
import { z } from "zod";
import { family } from "../family.ts";

export const hunyuanV1Dense = family({
  config: { use_qk_norm: z.boolean().default(true) },
  design: ({ use_qk_norm }) => ({
    rotatesFirst: use_qk_norm,
    headNorms: use_qk_norm ? ["query_layernorm", "key_layernorm"] : undefined,
  }),
});
