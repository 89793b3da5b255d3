// Describes llama.cpp's conversion of families with Mamba, short convolutions or RWKV.
import { deepseekKeys, graniteExperts, hasCorrections, kindsOf } from "./common.ts";
import type { GgufFamily, GgufValues } from "./family.ts";

/** Names of a Mamba mixer's tensors, except step sizes': Mamba 1 has a projection for them, Mamba 2 a bias. */
const mambaNames = (mixer: string) => ({
  ssm_in: `${mixer}.in_proj`,
  ssm_conv1d: `${mixer}.conv1d`,
  ssm_x: `${mixer}.x_proj`,
  ssm_a: `${mixer}.A_log.`,
  ssm_d: `${mixer}.D.`,
  ssm_norm: `${mixer}.norm`,
  ssm_out: `${mixer}.out_proj`,
});

const mamba1Names = (mixer: string) => ({ ...mambaNames(mixer), ssm_dt: `${mixer}.dt_proj` });
const mamba2Names = (mixer: string) => ({ ...mambaNames(mixer), ssm_dt: `${mixer}.dt_` });

/** Names of tensors of an MLP or of experts; `part` is their prefix. */
const mlpNames = (part: string) => ({
  ffn_gate: `${part}.gate_proj`,
  ffn_up: `${part}.up_proj`,
  ffn_down: `${part}.down_proj`,
  ffn_gate_inp: `${part}.gate`,
  ffn_gate_exps: `${part}.switch_mlp.gate_proj`,
  ffn_up_exps: `${part}.switch_mlp.up_proj`,
  ffn_down_exps: `${part}.switch_mlp.down_proj`,
});

/** Returns head count and head size of Mamba 2 layers. */
function mamba2Heads({ required }: GgufValues): { heads: number; headDim: number } {
  const heads = required("ssm.time_step_rank");
  return { heads, headDim: required("ssm.inner_size") / heads };
}

/** Removes head sizes, for models without attention, whose files have 0 heads. */
const noHeads = { num_key_value_heads: undefined, head_dim: undefined };

/** Names of RWKV's low-rank pairs of matrices, and of the second matrix's bias. */
const lowRankNames = (part: string) => ({
  [`time_mix_${part}0`]: `attn.${part}_lora.lora.2.bias.`,
  [`time_mix_${part}1`]: `attn.${part}_lora.lora.0`,
  [`time_mix_${part}2`]: `attn.${part}_lora.lora.2`,
});

const lfmNames = {
  ...mlpNames("feed_forward"),
  attn_norm: "operator_norm",
  ffn_norm: "ffn_norm",
  attn_q_norm: "self_attn.q_layernorm",
  attn_k_norm: "self_attn.k_layernorm",
  "shortconv.in_proj": "conv.in_proj",
  "shortconv.conv": "conv.conv",
  "shortconv.out_proj": "conv.out_proj",
  exp_probs_b: "feed_forward.expert_",
};

const lfmKeys: GgufFamily["config"] = (values, gguf) => ({
  ...deepseekKeys(values),
  norm_eps: values.required("attention.layer_norm_rms_epsilon"),
  conv_L_cache: values.required("shortconv.l_cache"),
  layer_types: kindsOf(gguf, values, {
    "shortconv.conv.weight": "conv",
    "attn_q.weight": "full_attention",
  }),
  num_dense_layers: values.optional("leading_dense_block_count"),
  use_expert_bias: hasCorrections(gguf),
});

const nemotronNames = {
  ...mamba2Names("mixer"),
  ...mlpNames("mixer"),
  attn_norm: "norm",
  attn_q: "mixer.q_proj",
  attn_k: "mixer.k_proj",
  attn_v: "mixer.v_proj",
  attn_output: "mixer.o_proj",
  exp_probs_b: "mixer.gate.e_score_correction_",
  ffn_up_shexp: "mixer.shared_experts.up_proj",
  ffn_down_shexp: "mixer.shared_experts.down_proj",
  ffn_latent_down: "mixer.fc1_latent_proj",
  ffn_latent_up: "mixer.fc2_latent_proj",
};

const nemotronKeys: GgufFamily["config"] = (values, gguf) => {
  const { optional, required } = values;
  const { heads, headDim } = mamba2Heads(values);
  return {
    ...deepseekKeys(values),
    hybrid_override_pattern: kindsOf(gguf, values, {
      "ssm_in.weight": "M",
      "attn_q.weight": "*",
      "ffn_up_exps.weight": "E",
      "ffn_up.weight": "-",
    }),
    layer_norm_epsilon: required("attention.layer_norm_rms_epsilon"),
    mamba_num_heads: heads,
    mamba_head_dim: headDim,
    ssm_state_size: required("ssm.state_size"),
    conv_kernel: required("ssm.conv_kernel"),
    n_groups: required("ssm.group_count"),
    moe_shared_expert_intermediate_size: optional("expert_shared_feed_forward_length"),
    moe_latent_size: optional("moe_latent_size"),
  };
};

/** Returns Mamba 2's sizes under the configuration keys of Granite and Falcon. */
function hybridKeys(values: GgufValues) {
  const { heads, headDim } = mamba2Heads(values);
  return {
    mamba_n_heads: heads,
    mamba_d_head: headDim,
    mamba_d_state: values.required("ssm.state_size"),
    mamba_d_conv: values.required("ssm.conv_kernel"),
    mamba_n_groups: values.required("ssm.group_count"),
  };
}

const mambaOrAttention = { "ssm_in.weight": "mamba", "attn_q.weight": "attention" };

export const recurrentFamilies: readonly (readonly [string, GgufFamily])[] = [
  [
    "falcon-h1",
    {
      modelType: "falcon_h1",
      names: { ...mamba2Names("mamba"), ...mlpNames("feed_forward"), ffn_norm: "pre_ff_layernorm" },
      config: (values, { tensors }) => ({
        ...hybridKeys(values),
        mamba_rms_norm: tensors.has("blk.0.ssm_norm.weight"),
        // Like llama.cpp, applies the gate before the norm.
        mamba_norm_before_gate: false,
        // These are 1, because the converter has multiplied all factors into the weights.
        embedding_multiplier: 1,
        lm_head_multiplier: 1,
      }),
    },
  ],
  [
    "granitehybrid",
    {
      modelType: "granitemoehybrid",
      isPaired: true,
      isUneven: true,
      names: {
        ...mamba2Names("mamba"),
        ...graniteExperts,
        ffn_gate_shexp: "shared_mlp.gate_proj",
        ffn_up_shexp: "shared_mlp.up_proj",
        ffn_down_shexp: "shared_mlp.down_proj",
      },
      config: (values, gguf) => ({
        ...hybridKeys(values),
        layer_types: kindsOf(gguf, values, mambaOrAttention),
        shared_intermediate_size: values.optional("expert_shared_feed_forward_length"),
        position_embedding_type: values.optional("rope.scaling.finetuned") === 0 ? "nope" : "rope",
      }),
    },
  ],
  [
    "jamba",
    {
      modelType: "jamba",
      isUneven: true,
      names: {
        ...mamba1Names("mamba"),
        ...mlpNames("feed_forward"),
        ssm_dt_norm: "mamba.dt_layernorm",
        ssm_b_norm: "mamba.b_layernorm",
        ssm_c_norm: "mamba.c_layernorm",
        ffn_norm: "pre_ff_layernorm",
      },
      config: (values, gguf) => {
        const { required } = values;
        const isSparse = kindsOf(gguf, values, { "ffn_gate_inp.weight": true, "": false });
        const first = isSparse.indexOf(true);
        const second = isSparse.indexOf(true, first + 1);
        return {
          layers_block_type: kindsOf(gguf, values, mambaOrAttention),
          mamba_d_conv: required("ssm.conv_kernel"),
          mamba_d_state: required("ssm.state_size"),
          mamba_expand: required("ssm.inner_size") / required("embedding_length"),
          mamba_dt_rank: required("ssm.time_step_rank"),
          expert_layer_offset: first,
          expert_layer_period: second < 0 ? isSparse.length : second - first,
        };
      },
    },
  ],
  [
    "lfm2",
    {
      modelType: "lfm2",
      isUneven: true,
      names: lfmNames,
      outside: { token_embd_norm: "model.norm" },
      config: lfmKeys,
    },
  ],
  [
    "lfm2moe",
    {
      modelType: "lfm2_moe",
      isUneven: true,
      names: lfmNames,
      outside: { token_embd_norm: "model.norm" },
      config: lfmKeys,
    },
  ],
  // Includes Falcon Mamba.
  [
    "mamba",
    {
      modelType: "mamba",
      names: { ...mamba1Names("mixer"), attn_norm: "norm" },
      config: ({ optional, required }) => ({
        ...noHeads,
        intermediate_size: required("ssm.inner_size"),
        state_size: required("ssm.state_size"),
        conv_kernel: required("ssm.conv_kernel"),
        time_step_rank: required("ssm.time_step_rank"),
        layer_norm_epsilon: required("attention.layer_norm_rms_epsilon"),
        use_bcdt_rms: optional("ssm.dt_b_c_rms") === 1,
      }),
    },
  ],
  [
    "mamba2",
    {
      modelType: "mamba2",
      names: { ...mamba2Names("mixer"), attn_norm: "norm" },
      config: (values) => {
        const { heads, headDim } = mamba2Heads(values);
        const { required } = values;
        return {
          ...noHeads,
          num_heads: heads,
          head_dim: headDim,
          intermediate_size: required("ssm.inner_size"),
          state_size: required("ssm.state_size"),
          conv_kernel: required("ssm.conv_kernel"),
          n_groups: required("ssm.group_count"),
          layer_norm_epsilon: required("attention.layer_norm_rms_epsilon"),
          time_step_limit: [0, Infinity],
        };
      },
    },
  ],
  [
    "nemotron_h",
    { modelType: "nemotron_h", isUneven: true, names: nemotronNames, config: nemotronKeys },
  ],
  [
    "nemotron_h_moe",
    { modelType: "nemotron_h", isUneven: true, names: nemotronNames, config: nemotronKeys },
  ],
  [
    "plamo2",
    {
      modelType: "plamo2",
      isUneven: true,
      names: {
        ...mambaNames("mixer"),
        ssm_x: "mixer.bcdt_proj",
        "ssm_dt.weight": "mixer.dt_proj.weight.",
        "ssm_dt.bias": "mixer.dt_bias.",
        ssm_dt_norm: "mixer.dt_norm_",
        ssm_b_norm: "mixer.B_norm_",
        ssm_c_norm: "mixer.C_norm_",
        attn_qkv: "mixer.qkv_proj",
        attn_q_norm: "mixer.q_",
        attn_k_norm: "mixer.k_",
        attn_output: "mixer.o_proj",
        attn_norm: "pre_mixer_norm",
        post_attention_norm: "post_mixer_norm",
        ffn_norm: "pre_mlp_norm",
        ffn_up: "mlp.gate_up_proj",
        post_ffw_norm: "post_mlp_norm",
      },
      config: (values, gguf) => {
        const { heads, headDim } = mamba2Heads(values);
        const isMamba = kindsOf(gguf, values, { "ssm_in.weight": true, "attn_qkv.weight": false });
        return {
          hidden_size_per_head: headDim,
          mamba_num_heads: heads,
          mamba_d_state: values.required("ssm.state_size"),
          mamba_d_conv: values.required("ssm.conv_kernel"),
          mamba_enabled: isMamba.includes(true),
          // The first attention layer has index mamba_step / 2.
          mamba_step: Math.max(2, 2 * isMamba.indexOf(false)),
          // All attention layers are full, because the file has no windows.
          full_attention_idx: isMamba.flatMap((is, layer) => (is ? [] : [layer])),
        };
      },
    },
  ],
  [
    "rwkv7",
    {
      modelType: "rwkv7",
      names: {
        attn_norm: "attn_norm",
        attn_norm_2: "ffn_norm",
        time_mix_lerp_fused: "attn.x_rwkvag",
        ...lowRankNames("w"),
        ...lowRankNames("a"),
        ...lowRankNames("v"),
        ...lowRankNames("g"),
        time_mix_k_k: "attn.k_k.",
        time_mix_k_a: "attn.k_a.",
        time_mix_r_k: "attn.r_k.",
        time_mix_receptance: "attn.r_proj",
        time_mix_key: "attn.k_proj",
        time_mix_value: "attn.v_proj",
        time_mix_output: "attn.o_proj",
        time_mix_ln: "attn.g_norm",
        channel_mix_lerp_k: "ffn.x_k.",
        channel_mix_key: "ffn.key",
        channel_mix_value: "ffn.value",
      },
      outside: { token_embd_norm: "model.layers.0.pre_norm" },
      config: ({ required }) => ({
        ...noHeads,
        head_dim: required("wkv.head_size"),
        norm_eps: required("attention.layer_norm_epsilon"),
        a_low_rank_dim: required("attention.iclr_lora_rank"),
        v_low_rank_dim: required("attention.value_residual_mix_lora_rank"),
        gate_low_rank_dim: required("attention.gate_lora_rank"),
        decay_low_rank_dim: required("attention.decay_lora_rank"),
      }),
    },
  ],
];
