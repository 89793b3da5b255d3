// Renames tensors whose names vary between files but mean the same in every family.

/** Replacements, applied in order. */
const commonNames: readonly (readonly [RegExp, string])[] = [
  // Prefix of the text decoder in multimodal files.
  [/^model\.language_model\./, "model."],
  [/^language_model\./, ""],
  [/^(model\.transformer|transformer|gpt_neox|backbone)\./, "model."],
  [/^(h|wte|wpe|ln_f)\./, "model.$1."],
  [/^(output|embed_out|model\.embed_out)\./, "lm_head."],
  [
    /^model\.(embd\.wte|wte|embed|embed_in|embeddings?|(word|tok|token)_embeddings)\./,
    "model.embed_tokens.",
  ],
  [/^model\.wpe\./, "model.embed_positions."],
  [/^model\.(h|blocks|layers\.layers)\./, "model.layers."],
  [
    /^model\.(ln_f|norm_f|final_norm|final_layer_?norm|output_norm|embedding_norm)\./,
    "model.norm.",
  ],
  [/\.(ln_1|attention_norm)\./, ".input_layernorm."],
  [/\.ln_2\./, ".post_attention_layernorm."],
  [/\.attention\./, ".self_attn."],
  [/\.attn\.(c_attn|c_proj|out_proj)\./, ".self_attn.$1."],
  [/\.self_attn\.(c_attn|q_k_v_proj|query_key_value|wqkv|Wqkv)\./, ".self_attn.qkv_proj."],
  [/\.self_attn\.(c_proj|dense|out_proj|wo)\./, ".self_attn.o_proj."],
  [/\.block_sparse_moe\./, ".mlp."],
  [/\.mlp\.(gate|router)\.(gate|gate_proj|layer|proj|wg)\./, ".mlp.gate."],
  [/\.(mlp|switch_mlp)\.(c_fc|fc1|fc_in|dense_h_to_4h)\./, ".$1.up_proj."],
  [/\.(mlp|switch_mlp)\.(c_proj|fc2|fc_out|dense_4h_to_h)\./, ".$1.down_proj."],
];

export function commonName(name: string): string {
  return commonNames.reduce((all, [pattern, common]) => all.replace(pattern, common), name);
}
