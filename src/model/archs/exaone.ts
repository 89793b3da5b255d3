// EXAONE 3 and 3.5: Llama under other names.
import { family } from "../family.ts";

export const exaone = family({
  keys: { num_hidden_layers: "num_layers", rms_norm_eps: "layer_norm_epsilon" },
  names: {
    "transformer.h.": "model.layers.",
    "transformer.wte.": "model.embed_tokens.",
    "transformer.ln_f.": "model.norm.",
    ".attn.attention.out_proj.": ".self_attn.o_proj.",
    ".attn.attention.": ".self_attn.",
    ".ln_1.": ".input_layernorm.",
    ".ln_2.": ".post_attention_layernorm.",
    ".c_fc_0.": ".gate_proj.",
    ".c_fc_1.": ".up_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
  },
});
