// Lists tensor names and configuration keys that several of llama.cpp's families share.
import type { Gguf } from "../../../files/gguf.ts";
import type { GgufValues } from "./family.ts";

/** Names of shared experts and of the routing correction. */
export const besideRouter = {
  ffn_gate_shexp: "mlp.shared_experts.gate_proj",
  ffn_up_shexp: "mlp.shared_experts.up_proj",
  ffn_down_shexp: "mlp.shared_experts.down_proj",
  exp_probs_b: "mlp.gate.e_score_correction_",
};

/** Names of a single shared expert with a gate, as in Qwen. */
export const sharedExpert = {
  ffn_gate_inp_shexp: "mlp.shared_expert_gate",
  ffn_gate_shexp: "mlp.shared_expert.gate_proj",
  ffn_up_shexp: "mlp.shared_expert.up_proj",
  ffn_down_shexp: "mlp.shared_expert.down_proj",
};

export const graniteExperts = {
  ffn_gate_inp: "block_sparse_moe.router.layer",
  ffn_gate_exps: "block_sparse_moe.switch_mlp.gate_proj",
  ffn_up_exps: "block_sparse_moe.switch_mlp.up_proj",
  ffn_down_exps: "block_sparse_moe.switch_mlp.down_proj",
};

const scoreFunctions: Partial<Record<number, string>> = { 1: "softmax", 2: "sigmoid" };

export const scoresOf = ({ optional }: GgufValues) =>
  scoreFunctions[optional("expert_gating_func") ?? 0] ?? undefined;

/** Reads DeepSeek's configuration keys, which many families use. */
export function deepseekKeys({ optional }: GgufValues) {
  return {
    n_routed_experts: optional("expert_count"),
    n_shared_experts: optional("expert_shared_count"),
    first_k_dense_replace: optional("leading_dense_block_count"),
    routed_scaling_factor: optional("expert_weights_scale"),
    norm_topk_prob: optional("expert_weights_norm") !== 0,
    n_group: optional("expert_group_count"),
    topk_group: optional("expert_group_used_count"),
  };
}

export const latentNames = {
  attn_q_a: "self_attn.q_a_proj",
  attn_q_a_norm: "self_attn.q_a_layernorm",
  attn_q_b: "self_attn.q_b_proj",
  attn_kv_a_mqa: "self_attn.kv_a_proj_with_mqa",
  attn_kv_a_norm: "self_attn.kv_a_layernorm",
  attn_kv_b: "self_attn.kv_b_proj",
  attn_k_b: "self_attn.embed_q",
  attn_v_b: "self_attn.unembed_out",
};

export function latentSizes({ optional, required }: GgufValues) {
  const rotary = required("rope.dimension_count");
  return {
    q_lora_rank: optional("attention.q_lora_rank"),
    kv_lora_rank: required("attention.kv_lora_rank"),
    qk_rope_head_dim: rotary,
    // Prefers the _mla keys, which are a head's sizes: beside them, key_length and value_length are the latent's.
    qk_nope_head_dim:
      (optional("attention.key_length_mla") ?? required("attention.key_length")) - rotary,
    v_head_dim: optional("attention.value_length_mla") ?? required("attention.value_length"),
  };
}

export const hasNorms = ({ tensors }: Gguf) => tensors.has("blk.0.attn_q_norm.weight");

export const hasCorrections = ({ tensors }: Gguf) =>
  tensors.keys().some((name) => name.endsWith(".exp_probs_b.bias"));

/** Returns each layer's kind: that of the first tensor name in `kinds` that the layer has, else the last one. */
export function kindsOf<T>(
  { tensors }: Gguf,
  { optional, required }: GgufValues,
  kinds: Readonly<Record<string, T>>,
): T[] {
  const known = Object.entries(kinds);
  const layers = required("block_count") - (optional("nextn_predict_layers") ?? 0);
  return Array.from({ length: layers }, (_, layer) => {
    const found = known.find(([part]) => tensors.has(`blk.${layer}.${part}`));
    return (found ?? known.at(-1)!)[1];
  });
}
