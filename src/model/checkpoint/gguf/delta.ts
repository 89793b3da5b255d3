// Describes llama.cpp's conversion of families with delta nets.
import type { Gguf } from "../../../files/gguf.ts";
import {
  besideRouter,
  deepseekKeys,
  kindsOf,
  latentNames,
  latentSizes,
  scoresOf,
  sharedExpert,
} from "./common.ts";
import type { GgufFamily, GgufValues } from "./family.ts";

const deltaNames = {
  attn_qkv: "linear_attn.in_proj_qkv",
  attn_gate: "linear_attn.in_proj_z",
  ssm_ba: "linear_attn.in_proj_ba",
  ssm_beta: "linear_attn.in_proj_b",
  ssm_alpha: "linear_attn.in_proj_a",
  ssm_conv1d: "linear_attn.conv1d",
  ssm_a: "linear_attn.A_log.",
  ssm_dt: "linear_attn.dt_",
  ssm_norm: "linear_attn.norm",
  ssm_out: "linear_attn.out_proj",
  post_attention_norm: "post_attention_layernorm",
  ...sharedExpert,
};

function deltaKeys({ optional, required }: GgufValues) {
  const valueHeads = required("ssm.time_step_rank");
  return {
    linear_num_value_heads: valueHeads,
    linear_num_key_heads: required("ssm.group_count"),
    linear_key_head_dim: required("ssm.state_size"),
    linear_value_head_dim: required("ssm.inner_size") / valueHeads,
    linear_conv_kernel_dim: required("ssm.conv_kernel"),
    full_attention_interval: optional("full_attention_interval"),
    shared_expert_intermediate_size: optional("expert_shared_feed_forward_length"),
  };
}

/** Names of a delta net with a decay per feature (KDA), latent attention and experts. */
const kdaNames = {
  ...besideRouter,
  ...latentNames,
  ssm_conv1d_q: "self_attn.q_conv1d",
  ssm_conv1d_k: "self_attn.k_conv1d",
  ssm_conv1d_v: "self_attn.v_conv1d",
  ssm_f_a: "self_attn.f_a_proj",
  ssm_f_b: "self_attn.f_b_proj",
  ssm_beta: "self_attn.b_proj",
  ssm_a: "self_attn.A_log.",
  ssm_dt: "self_attn.dt_",
  ssm_norm: "self_attn.o_norm",
};

const deltaOrLatent = { ssm_a: true, "": false };

function kimiKeys(values: GgufValues, gguf: Gguf) {
  const { optional, required } = values;
  const isDelta = kindsOf(gguf, values, deltaOrLatent);
  return {
    ...deepseekKeys(values),
    ...latentSizes(values),
    linear_attn_config: {
      kda_layers: isDelta.flatMap((is, layer) => (is ? [layer + 1] : [])),
      num_heads: required("attention.head_count"),
      head_dim: required("kda.head_dim"),
      short_conv_kernel_size: required("ssm.conv_kernel"),
      gate_lower_bound: optional("kda.gate_lower_bound"),
      use_full_rank_gate: hasTensor(gguf, "ssm_g.weight"),
    },
    num_experts_per_token: optional("expert_used_count"),
    num_shared_experts: optional("expert_shared_count"),
    moe_renormalize: optional("expert_weights_norm") !== 0,
    moe_router_activation_func: scoresOf(values),
    num_expert_group: optional("expert_group_count"),
  };
}

const hasTensor = ({ tensors }: Gguf, part: string) =>
  tensors.keys().some((name) => name.endsWith(`.${part}`));

export const deltaFamilies: readonly (readonly [string, GgufFamily])[] = [
  [
    "bailingmoe3",
    {
      modelType: "bailing_moe_v3",
      isUneven: true,
      names: {
        ...kdaNames,
        ssm_f_a: "self_attn.f_proj",
        ssm_g_a: "self_attn.g_proj",
        attn_gate: "self_attn.g_proj",
        exp_probs_b: "mlp.gate.expert_",
      },
      config: (values, gguf) => ({
        ...deepseekKeys(values),
        ...latentSizes(values),
        head_dim: values.required("kda.head_dim"),
        kda_lower_bound: values.required("kda.gate_lower_bound"),
        short_conv_kernel_size: values.required("ssm.conv_kernel"),
        layer_group_size: kindsOf(gguf, values, deltaOrLatent).indexOf(false) + 1,
        num_shared_experts: values.optional("expert_shared_count"),
        moe_shared_expert_intermediate_size: values.optional("expert_shared_feed_forward_length"),
      }),
    },
  ],
  [
    "kimi-k3",
    {
      modelType: "kimi_k3",
      isUneven: true,
      names: {
        ...kdaNames,
        ssm_g: "self_attn.g_proj",
        attn_gate: "self_attn.g_proj",
        attn_res_score: "self_attention_res_score",
        ffn_res_score: "mlp_res_score",
        ffn_routed_down: "mlp.routed_expert_down_proj",
        ffn_routed_up: "mlp.routed_expert_up_proj",
        ffn_routed_norm: "mlp.routed_expert_norm",
      },
      outside: { output_res_score: "model.output_attn_res_score" },
      config: (values, gguf) => ({
        ...kimiKeys(values, gguf),
        activation_situ_beta: values.optional("activation.situ_beta"),
        activation_situ_linear_beta: values.optional("activation.situ_linear_beta"),
        attn_res_block_size: values.optional("attn_res.block_size"),
        mla_use_output_gate: hasTensor(gguf, "attn_gate.weight"),
        routed_expert_hidden_size: values.optional("expert_latent_length"),
        latent_moe_use_norm: hasTensor(gguf, "ffn_routed_norm.weight"),
      }),
    },
  ],
  [
    "kimi-linear",
    {
      modelType: "kimi_linear",
      isUneven: true,
      names: { ...kdaNames, ssm_g_a: "self_attn.g_a_proj", ssm_g_b: "self_attn.g_b_proj" },
      config: kimiKeys,
    },
  ],
  // The first converters put queries, keys, values and gates in one matrix.
  [
    "qwen3next",
    {
      modelType: "qwen3_next",
      names: { ...deltaNames, ssm_in: "linear_attn.in_proj_qkvz" },
      config: deltaKeys,
    },
  ],
  ["qwen35", { modelType: "qwen3_5", names: deltaNames, config: deltaKeys, isTiled: true }],
  ["qwen35moe", { modelType: "qwen3_5_moe", names: deltaNames, config: deltaKeys, isTiled: true }],
];
