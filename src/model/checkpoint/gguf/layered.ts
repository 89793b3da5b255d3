// Describes llama.cpp's conversion of families whose layers differ.
import type { Gguf } from "../../../files/gguf.ts";
import { besideRouter, deepseekKeys, kindsOf, sharedExpert } from "./common.ts";
import type { GgufFamily, GgufValues } from "./family.ts";

const sparseOrDense = { "ffn_gate_inp.weight": true, "": false };

/** Returns the head counts of layers with and without a window. */
function headsByWindow({ list }: GgufValues) {
  const slides = list("attention.sliding_window_pattern").map(Boolean);
  const [near, far] = [slides.indexOf(true), slides.indexOf(false)];
  const of = (key: string, layer: number) => list(key)[Math.max(0, layer)];
  return {
    slides,
    near: of("attention.head_count", near),
    far: of("attention.head_count", far),
    nearKv: of("attention.head_count_kv", near),
    farKv: of("attention.head_count_kv", far),
  };
}

/** Reads MiMo's keys: layers with a window have their own KV heads, sinks and RoPE. */
function mimoKeys(values: GgufValues, gguf: Gguf) {
  const { optional, required } = values;
  const { slides, nearKv, farKv } = headsByWindow(values);
  const hasSinks = kindsOf(gguf, values, {
    "attn_sinks.weight": true,
    attn_sinks: true,
    "": false,
  });
  const headDim = required("attention.key_length");
  const valueDim = required("attention.value_length");
  return {
    ...deepseekKeys(values),
    hybrid_layer_pattern: hasSinks.map((_, layer) => Number(slides[layer])),
    moe_layer_freq: kindsOf(gguf, values, sparseOrDense).map(Number),
    add_swa_attention_sink_bias: hasSinks.some((has, layer) => has && slides[layer]),
    add_full_attention_sink_bias: hasSinks.some((has, layer) => has && !slides[layer]),
    sliding_window_size: required("attention.sliding_window"),
    layernorm_epsilon: required("attention.layer_norm_rms_epsilon"),
    num_key_value_heads: farKv,
    v_head_dim: valueDim,
    swa_rope_theta: optional("rope.freq_base_swa") ?? required("rope.freq_base"),
    swa_num_attention_heads: required("attention.head_count"),
    swa_num_key_value_heads: nearKv,
    swa_head_dim: headDim,
    swa_v_head_dim: valueDim,
    attention_value_scale: optional("attention.value_scale"),
  };
}

function stepKeys(values: GgufValues, gguf: Gguf) {
  const { architecture, optional, required, list } = values;
  const { slides, near, far, nearKv, farKv } = headsByWindow(values);
  const [theta, localTheta] = [required("rope.freq_base"), optional("rope.freq_base_swa")];
  const limits = (key: string) =>
    gguf.metadata.has(`${architecture}.${key}`) ? list(key) : undefined;
  const isSparse = kindsOf(gguf, values, sparseOrDense);
  return {
    num_attention_heads: far,
    num_attention_groups: farKv,
    attention_other_setting: { num_attention_heads: near, num_attention_groups: nearKv },
    use_head_wise_attn_gate: gguf.tensors.has("blk.0.attn_gate.weight"),
    rope_theta: slides.map((isNear) => (isNear ? (localTheta ?? theta) : theta)),
    // The next two are as in llama.cpp: layers without a window rotate half of a head; only their RoPE is scaled.
    partial_rotary_factors: slides.map((isNear) => (isNear ? 1 : 0.5)),
    yarn_only_types: ["full_attention"],
    moe_num_experts: optional("expert_count"),
    moe_top_k: optional("expert_used_count"),
    share_expert_dim: optional("expert_shared_feed_forward_length"),
    moe_layers_enum: isSparse.flatMap((is, layer) => (is ? [layer] : [])).join(),
    moe_router_scaling_factor: optional("expert_weights_scale"),
    norm_expert_weight: optional("expert_weights_norm") !== 0,
    swiglu_limits: limits("swiglu_clamp_exp"),
    swiglu_limits_shared: limits("swiglu_clamp_shexp"),
  };
}

/** Names of Gemma's norms before and after attention and MLP. */
const gemmaNames = {
  post_attention_norm: "post_attention_layernorm",
  ffn_norm: "pre_feedforward_layernorm",
  post_ffw_norm: "post_feedforward_layernorm",
  inp_gate: "per_layer_input_gate",
  proj: "per_layer_projection",
  post_norm: "post_per_layer_input_norm",
};

const gemmaOutside = {
  per_layer_token_embd: "model.embed_tokens_per_layer",
  per_layer_model_proj: "model.per_layer_model_projection",
  per_layer_proj_norm: "model.per_layer_projection_norm",
};

function gemmaKeys({ optional }: GgufValues, { tensors }: Gguf) {
  return {
    vocab_size_per_layer_input: tensors.get("per_layer_token_embd.weight")?.shape[0],
    hidden_size_per_layer_input: optional("embedding_length_per_layer_input"),
    num_kv_shared_layers: optional("attention.shared_kv_layers") ?? 0,
    final_logit_softcapping: optional("final_logit_softcapping") ?? null,
  };
}

function gemma3nKeys(values: GgufValues, gguf: Gguf) {
  const { architecture, required, list } = values;
  const scales = gguf.metadata.get(`${architecture}.activation_sparsity_scale`);
  return {
    ...gemmaKeys(values, gguf),
    intermediate_size: list("feed_forward_length"),
    // Converts -Infinity, which means no threshold, to null.
    activation_deviations: ArrayBuffer.isView(scales)
      ? Array.from(scales as Float32Array, (each) => (Number.isFinite(each) ? each : null))
      : undefined,
    altup_num_inputs: required("altup.num_inputs"),
    altup_active_idx: required("altup.active_idx"),
    altup_correct_scale: true,
    laurel_rank: gguf.tensors.get("blk.0.laurel_l.weight")?.shape[0],
  };
}

function gemma4Keys(values: GgufValues, gguf: Gguf) {
  const { optional, required, list } = values;
  const { slides, nearKv, farKv } = headsByWindow(values);
  const widths = list("feed_forward_length");
  const hasValues = kindsOf(gguf, values, { "attn_v.weight": true, "attn_k.weight": false });
  return {
    ...gemmaKeys(values, gguf),
    intermediate_size: widths[0],
    use_double_wide_mlp: widths.at(-1) !== widths[0],
    head_dim: optional("attention.key_length_swa") ?? required("attention.key_length"),
    global_head_dim: required("attention.key_length"),
    num_key_value_heads: nearKv,
    num_global_key_value_heads: farKv,
    attention_k_eq_v: hasValues[slides.indexOf(false)] === false,
    rope_parameters: {
      full_attention: { rope_theta: required("rope.freq_base") },
      sliding_attention: { rope_theta: optional("rope.freq_base_swa") },
    },
    enable_moe_block: Boolean(optional("expert_count")),
    top_k_experts: optional("expert_used_count"),
  };
}

/** Derives keys as llama.cpp does: chunks of 8192 tokens unless the window is 0; no head norms with 128 experts. */
function llama4Keys({ optional, required }: GgufValues) {
  const isPlain = optional("attention.sliding_window") === 0;
  return {
    intermediate_size: required("expert_feed_forward_length"),
    intermediate_size_mlp: required("feed_forward_length"),
    use_qk_norm: optional("expert_count") !== 128,
    attention_chunk_size: isPlain ? undefined : 8192,
    no_rope_layers: isPlain ? Array<number>(required("block_count")).fill(1) : undefined,
  };
}

/** Adds layer types, which the file lacks: as in llama.cpp, layers 0, 4, 8 ... have no window. */
function lagunaKeys(values: GgufValues, gguf: Gguf) {
  const { optional, required, list } = values;
  const window = optional("attention.sliding_window");
  const headDim = required("attention.key_length");
  const isSparse = kindsOf(gguf, values, sparseOrDense);
  const ropeOf = (kind: "" | "_swa") => ({
    rope_theta: optional(`rope.freq_base${kind}`),
    partial_rotary_factor: (optional(`rope.dimension_count${kind}`) ?? headDim) / headDim,
  });
  const factor = optional("rope.scaling.factor");
  return {
    layer_types: isSparse.map((_, layer) =>
      window && layer % 4 !== 0 ? "sliding_attention" : "full_attention",
    ),
    mlp_layer_types: isSparse.map((is) => (is ? "sparse" : "dense")),
    num_attention_heads_per_layer: list("attention.head_count"),
    gating: gguf.tensors.has("blk.0.attn_gate.weight"),
    rope_parameters: {
      full_attention: {
        ...ropeOf(""),
        ...(factor !== undefined && {
          rope_type: "yarn",
          factor,
          original_max_position_embeddings: optional("rope.scaling.original_context_length"),
          beta_fast: optional("rope.scaling.yarn_beta_fast"),
          beta_slow: optional("rope.scaling.yarn_beta_slow"),
        }),
      },
      sliding_attention: ropeOf("_swa"),
    },
    shared_expert_intermediate_size: optional("expert_shared_feed_forward_length"),
    moe_routed_scaling_factor: optional("expert_weights_scale"),
  };
}

export const layeredFamilies: readonly (readonly [string, GgufFamily])[] = [
  [
    "exaone-moe",
    {
      modelType: "exaone_moe",
      windowPeriod: 4,
      names: besideRouter,
      config: (values, gguf) => ({
        ...deepseekKeys(values),
        num_shared_experts: values.optional("expert_shared_count"),
        is_moe_layer: kindsOf(gguf, values, sparseOrDense),
      }),
    },
  ],
  [
    "gemma3n",
    {
      modelType: "gemma3n",
      isUneven: true,
      windowPeriod: 5,
      names: {
        ...gemmaNames,
        altup_correct_scale: "altup.correct_output_scale.",
        altup_correct_coef: "altup.correction_coefs",
        altup_predict_coef: "altup.prediction_coefs",
        altup_router: "altup.modality_router",
        altup_router_norm: "altup.router_norm",
        laurel_l: "laurel.linear_left",
        laurel_r: "laurel.linear_right",
        laurel_post_norm: "laurel.post_laurel_norm",
      },
      outside: {
        ...gemmaOutside,
        altup_proj: "model.altup_projections",
        altup_unembd_proj: "model.altup_unembed_projections",
      },
      config: gemma3nKeys,
    },
  ],
  [
    "gemma4",
    {
      modelType: "gemma4_text",
      isUneven: true,
      windowPeriod: 6,
      names: {
        ...gemmaNames,
        layer_output_scale: "layer_scalar.",
        ffn_gate_inp: "router.proj",
        "ffn_gate_inp.scale": "router.scale.",
        ffn_gate_exps: "experts.switch_glu.gate_proj",
        ffn_up_exps: "experts.switch_glu.up_proj",
        ffn_down_exps: "experts.switch_glu.down_proj",
        "ffn_down_exps.scale": "router.per_expert_scale.",
        pre_ffw_norm_2: "pre_feedforward_layernorm_2",
        post_ffw_norm_1: "post_feedforward_layernorm_1",
        post_ffw_norm_2: "post_feedforward_layernorm_2",
      },
      outside: gemmaOutside,
      config: gemma4Keys,
    },
  ],
  [
    "llama4",
    {
      modelType: "llama4_text",
      names: {
        ffn_gate: "feed_forward.gate_proj",
        ffn_up: "feed_forward.up_proj",
        ffn_down: "feed_forward.down_proj",
        ffn_gate_inp: "feed_forward.router",
        ffn_gate_exps: "feed_forward.experts.gate_proj",
        ffn_up_exps: "feed_forward.experts.up_proj",
        ffn_down_exps: "feed_forward.experts.down_proj",
        ffn_gate_shexp: "feed_forward.shared_expert.gate_proj",
        ffn_up_shexp: "feed_forward.shared_expert.up_proj",
        ffn_down_shexp: "feed_forward.shared_expert.down_proj",
      },
      config: llama4Keys,
    },
  ],
  [
    "laguna",
    {
      modelType: "laguna",
      isUneven: true,
      names: {
        ...sharedExpert,
        attn_gate: "self_attn.g_proj",
        exp_probs_b: "mlp.gate.e_score_correction_",
      },
      config: lagunaKeys,
    },
  ],
  [
    "mellum",
    {
      modelType: "mellum",
      windowPeriod: 4,
      config: ({ optional, required }) => ({
        rope_parameters: {
          full_attention: { rope_theta: required("rope.freq_base") },
          sliding_attention: { rope_theta: optional("rope.freq_base_swa") },
        },
      }),
    },
  ],
  [
    "mimo2",
    {
      modelType: "mimo_v2_flash",
      isUneven: true,
      names: { ...besideRouter, attn_sinks: "self_attn.attention_sink_bias." },
      config: mimoKeys,
    },
  ],
  [
    "muse-glimmer",
    {
      modelType: "muse_glimmer",
      isPaired: true,
      windowPeriod: 4,
      names: {
        attn_gate: "self_attn.gate_proj",
        post_attention_norm: "post_attention_layernorm",
        ffn_norm: "pre_feedforward_layernorm",
        post_ffw_norm: "post_feedforward_layernorm",
      },
      config: ({ optional }) => ({
        qk_scale_factor: 1,
        output_multiplier: optional("logit_scale"),
      }),
    },
  ],
  [
    "step35",
    {
      modelType: "step3p5",
      isUneven: true,
      windowPeriod: 4,
      names: {
        attn_gate: "self_attn.g_proj",
        exp_probs_b: "mlp.gate.router_",
        ffn_gate_shexp: "mlp.share_expert.gate_proj",
        ffn_up_shexp: "mlp.share_expert.up_proj",
        ffn_down_shexp: "mlp.share_expert.down_proj",
      },
      config: stepKeys,
    },
  ],
];
