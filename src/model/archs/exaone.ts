// EXAONE 3 and 3.5: Llama with other names.
import { family } from "../design/family.ts";

export const exaone = family({
  keys: { num_hidden_layers: "num_layers", rms_norm_eps: "layer_norm_epsilon" },
  names: { ".attn.self_attn.": ".self_attn.", ".c_fc_0.": ".gate_proj.", ".c_fc_1.": ".up_proj." },
});
