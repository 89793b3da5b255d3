// GLM 4 0414: GLM with norms after attention and MLP, too.
import { family } from "../design/family.ts";
import { glm } from "./glm.ts";

export const glm4 = family({
  like: glm,
  design: () => ({
    norms: {
      attention: "input_layernorm",
      afterAttention: "post_self_attn_layernorm",
      mlp: "post_attention_layernorm",
      afterMlp: "post_mlp_layernorm",
    },
  }),
});
