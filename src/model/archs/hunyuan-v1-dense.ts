// Hunyuan's dense models: head norms after RoPE.
import { flag } from "../checkpoint/config.ts";
import { family } from "../design/family.ts";

export const hunyuanV1Dense = family({
  config: { use_qk_norm: flag.default(true) },
  design: ({ use_qk_norm }) => ({
    rotatesFirst: use_qk_norm,
    headNorms: use_qk_norm ? ["query_layernorm", "key_layernorm"] : undefined,
  }),
});
