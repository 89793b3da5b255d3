// Describes llama.cpp's conversion of families with experts.
import type { Gguf } from "../../../files/gguf.ts";
import {
  besideRouter,
  deepseekKeys,
  graniteExperts,
  hasCorrections,
  hasNorms,
  latentNames,
  latentSizes,
  scoresOf,
  sharedExpert,
} from "./common.ts";
import type { GgufFamily, GgufValues } from "./family.ts";

function latentKeys(values: GgufValues) {
  const groups = values.optional("expert_group_count") ?? 1;
  return {
    ...deepseekKeys(values),
    ...latentSizes(values),
    model_type: scoresOf(values) === "sigmoid" ? "deepseek_v3" : "deepseek_v2",
    topk_method: groups > 1 ? "group_limited_greedy" : "greedy",
  };
}

/** Returns the index of the last layer with experts. */
function lastSparse({ tensors }: Gguf): number | undefined {
  const found = tensors.keys().flatMap((name) => {
    const [, layer] = /^blk\.(\d+)\.ffn_gate_inp\.weight$/.exec(name) ?? [];
    return layer ? [Number(layer)] : [];
  });
  return [...found].sort((a, b) => b - a)[0];
}

/** Long names of head norms. */
const longNorms = {
  attn_q_norm: "self_attn.query_layernorm",
  attn_k_norm: "self_attn.key_layernorm",
};

function bailingKeys(values: GgufValues) {
  const { optional } = values;
  return {
    ...deepseekKeys(values),
    num_experts: optional("expert_count"),
    num_shared_experts: optional("expert_shared_count"),
    score_function: scoresOf(values),
  };
}

export const expertFamilies: readonly (readonly [string, GgufFamily])[] = [
  [
    "afmoe",
    {
      modelType: "afmoe",
      windowPeriod: 4,
      names: {
        ...besideRouter,
        attn_gate: "self_attn.gate_proj",
        post_attention_norm: "post_attention_layernorm",
        ffn_norm: "pre_mlp_layernorm",
        post_ffw_norm: "post_mlp_layernorm",
        exp_probs_b: "mlp.expert_",
      },
      config: (values) => ({
        ...deepseekKeys(values),
        num_shared_experts: values.optional("expert_shared_count"),
        num_dense_layers: values.optional("leading_dense_block_count"),
        route_scale: values.optional("expert_weights_scale"),
        route_norm: values.optional("expert_weights_norm") !== 0,
        score_func: scoresOf(values),
      }),
    },
  ],
  [
    "bailingmoe",
    { modelType: "bailing_moe", isPaired: true, names: besideRouter, config: bailingKeys },
  ],
  [
    "bailingmoe2",
    {
      modelType: "bailing_moe",
      names: { ...besideRouter, ...longNorms, exp_probs_b: "mlp.gate.expert_" },
      config: (values, gguf) => ({
        ...bailingKeys(values),
        use_qk_norm: hasNorms(gguf),
        moe_router_enable_expert_bias: hasCorrections(gguf),
      }),
    },
  ],
  [
    "dbrx",
    {
      modelType: "dbrx",
      names: { attn_output_norm: "post_attention_layernorm" },
      config: ({ optional, required }) => ({
        d_model: required("embedding_length"),
        n_layers: required("block_count"),
        n_heads: required("attention.head_count"),
        max_seq_len: optional("context_length"),
        attn_config: {
          kv_n_heads: required("attention.head_count_kv"),
          clip_qkv: optional("attention.clamp_kqv"),
          rope_theta: optional("rope.freq_base"),
        },
        ffn_config: {
          ffn_hidden_size: required("feed_forward_length"),
          moe_num_experts: required("expert_count"),
          moe_top_k: required("expert_used_count"),
        },
      }),
    },
  ],
  [
    "deepseek",
    {
      modelType: "deepseek",
      isPaired: true,
      names: besideRouter,
      config: (values) => ({ ...deepseekKeys(values), norm_topk_prob: false }),
    },
  ],
  // Used by DeepSeek V2 and V3, Kimi K2 and GLM 4.7 Flash.
  [
    "deepseek2",
    {
      modelType: "deepseek_v3",
      others: ["deepseek_v2"],
      names: { ...besideRouter, ...latentNames },
      config: latentKeys,
    },
  ],
  ["dots1", { modelType: "dots1", names: besideRouter, config: deepseekKeys }],
  [
    "ernie4_5-moe",
    {
      modelType: "ernie4_5_moe",
      names: { ...besideRouter, exp_probs_b: "mlp.moe_statics.e_score_correction_" },
      config: ({ optional }, gguf) => ({
        moe_num_experts: optional("expert_count"),
        moe_k: optional("expert_used_count"),
        moe_num_shared_experts: optional("expert_shared_count"),
        moe_layer_interval: optional("interleave_moe_layer_step"),
        moe_layer_start_index: optional("leading_dense_block_count"),
        moe_layer_end_index: lastSparse(gguf),
      }),
    },
  ],
  [
    "glm4moe",
    {
      modelType: "glm4_moe",
      names: { ...besideRouter, post_attention_norm: "post_attention_layernorm" },
      config: (values, gguf) => ({ ...deepseekKeys(values), use_qk_norm: hasNorms(gguf) }),
    },
  ],
  [
    "gpt-oss",
    {
      modelType: "gpt_oss",
      names: {
        post_attention_norm: "post_attention_layernorm",
        attn_sinks: "self_attn.sinks",
        ffn_gate_inp: "mlp.router",
        ffn_gate_exps: "mlp.experts.gate_proj",
        ffn_up_exps: "mlp.experts.up_proj",
        ffn_down_exps: "mlp.experts.down_proj",
      },
    },
  ],
  [
    "granitemoe",
    {
      modelType: "granitemoe",
      isPaired: true,
      names: graniteExperts,
      config: ({ optional }) => ({ num_local_experts: optional("expert_count") }),
    },
  ],
  [
    "hunyuan-moe",
    {
      modelType: "hunyuan",
      names: {
        ...longNorms,
        ffn_gate_shexp: "mlp.shared_mlp.gate_proj",
        ffn_up_shexp: "mlp.shared_mlp.up_proj",
        ffn_down_shexp: "mlp.shared_mlp.down_proj",
      },
      config: ({ optional }, gguf) => ({
        moe_topk: optional("expert_used_count"),
        num_shared_expert: optional("expert_shared_count"),
        use_mixed_mlp_moe: gguf.tensors.has("blk.0.ffn_gate_shexp.weight"),
        use_qk_norm: hasNorms(gguf),
      }),
    },
  ],
  [
    "minimax-m2",
    {
      modelType: "minimax",
      names: { ...besideRouter, exp_probs_b: "mlp.e_score_correction_" },
      config: (values) => ({
        num_local_experts: values.optional("expert_count"),
        rotary_dim: values.optional("rope.dimension_count"),
        scoring_func: scoresOf(values),
      }),
    },
  ],
  [
    "mistral4",
    {
      modelType: "mistral4",
      names: { ...besideRouter, ...latentNames },
      config: (values) => ({
        ...deepseekKeys(values),
        ...latentSizes(values),
        rope_parameters: {
          rope_theta: values.optional("rope.freq_base"),
          llama_4_scaling_beta: values.optional("attention.temperature_scale") ?? 0,
          original_max_position_embeddings:
            values.optional("rope.scaling.original_context_length") ??
            values.required("context_length"),
        },
      }),
    },
  ],
  ["olmoe", { modelType: "olmoe", config: () => ({ norm_topk_prob: false }) }],
  ["phimoe", { modelType: "phimoe" }],
  [
    "qwen2moe",
    {
      modelType: "qwen2_moe",
      names: sharedExpert,
      config: ({ optional }) => ({
        norm_topk_prob: false,
        shared_expert_intermediate_size: optional("expert_shared_feed_forward_length"),
      }),
    },
  ],
  ["qwen3vlmoe", { modelType: "qwen3_moe" }],
];
