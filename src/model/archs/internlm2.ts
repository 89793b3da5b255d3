// InternLM 2 and 2.5: Llama with other names; each KV head's queries, key and value are side by side.
import { family } from "../design/family.ts";
import { arrangeGroups } from "../layers/qkv.ts";

export const internlm2 = family({
  names: {
    ".ffn_norm.": ".post_attention_layernorm.",
    ".feed_forward.w1.": ".mlp.gate_proj.",
    ".feed_forward.w3.": ".mlp.up_proj.",
    ".feed_forward.w2.": ".mlp.down_proj.",
  },
  design: (_, { matrices }) => ({ arrange: (name, sizes) => arrangeGroups(matrices, name, sizes) }),
});
