// Describes llama.cpp's conversion of each family: names, metadata, order of rows. Omitted fields are as for Llama.
import { hasNorms } from "./common.ts";
import { deltaFamilies } from "./delta.ts";
import { expertFamilies } from "./experts.ts";
import type { GgufFamily } from "./family.ts";
import { layeredFamilies } from "./layered.ts";
import { recurrentFamilies } from "./recurrent.ts";

/**
 * GGUF's names of norms that follow attention or MLP -> Hugging Face's, for families whose files name them "post".
 */
const behind = {
  post_attention_norm: "post_attention_layernorm",
  post_ffw_norm: "post_feedforward_layernorm",
};

/** Name of a matrix with both gate and up. */
const joinedHalves = { ffn_up: "mlp.gate_up_proj" };

/** Tells the architecture that the converter has put rows in our order, unlike the authors' files. */
const rowsInOrder = { rows_in_order: true };

const innerSize: GgufFamily["config"] = ({ required }) => ({
  n_inner: required("feed_forward_length"),
});

export const ggufFamilies: ReadonlyMap<string, GgufFamily> = new Map<string, GgufFamily>([
  ...deltaFamilies,
  ...expertFamilies,
  ...layeredFamilies,
  ...recurrentFamilies,
  [
    "apertus",
    {
      modelType: "apertus",
      names: { attn_norm: "attention_layernorm", ffn_norm: "feedforward_layernorm" },
      config: ({ list }) => ({
        xielu: {
          alpha_p: list("xielu.alpha_p"),
          alpha_n: list("xielu.alpha_n"),
          beta: list("xielu.beta"),
          eps: list("xielu.eps"),
        },
      }),
    },
  ],
  [
    "bitnet",
    {
      modelType: "bitnet",
      names: { attn_sub_norm: "self_attn.attn_sub_norm", ffn_sub_norm: "mlp.ffn_sub_norm" },
    },
  ],
  ["chatglm", { modelType: "glm", names: joinedHalves }],
  [
    "cohere2",
    {
      modelType: "cohere2",
      windowPeriod: 4,
      config: ({ optional }) => ({ logit_scale: optional("logit_scale") }),
    },
  ],
  [
    "command-r",
    {
      modelType: "cohere",
      config: ({ optional }, gguf) => ({
        logit_scale: optional("logit_scale"),
        use_qk_norm: hasNorms(gguf),
      }),
    },
  ],
  [
    "deci",
    {
      modelType: "nemotron-nas",
      isPaired: true,
      isUneven: true,
      config: ({ list, required }) => {
        const [heads, kvHeads] = [list("attention.head_count"), list("attention.head_count_kv")];
        return {
          block_configs: list("feed_forward_length").map((width, layer) => {
            const [own, shared] = [heads[layer]!, kvHeads[layer]!];
            return {
              attention: {
                no_op: own === 0,
                replace_with_linear: own > 0 && shared === 0,
                n_heads_in_group: shared > 0 ? own / shared : undefined,
              },
              ffn: {
                no_op: width === 0,
                ffn_mult: width > 0 ? (1.5 * width) / required("embedding_length") : undefined,
              },
            };
          }),
        };
      },
    },
  ],
  ["ernie4_5", { modelType: "ernie4_5" }],
  ["exaone", { modelType: "exaone" }],
  ["exaone4", { modelType: "exaone4", names: behind, windowPeriod: 4 }],
  ["gemma", { modelType: "gemma" }],
  [
    "glm4",
    {
      modelType: "glm4",
      names: {
        ...joinedHalves,
        post_attention_norm: "post_self_attn_layernorm",
        post_ffw_norm: "post_mlp_layernorm",
      },
    },
  ],
  ["gpt2", { modelType: "gpt2", config: innerSize }],
  [
    "gptneox",
    {
      modelType: "gpt_neox",
      config: ({ optional }) => ({
        ...rowsInOrder,
        use_parallel_residual: optional("use_parallel_residual") !== 0,
      }),
    },
  ],
  [
    "hunyuan-dense",
    {
      modelType: "hunyuan_v1_dense",
      names: { attn_q_norm: "self_attn.query_layernorm", attn_k_norm: "self_attn.key_layernorm" },
      config: (_, gguf) => ({ use_qk_norm: hasNorms(gguf) }),
    },
  ],
  ["internlm2", { modelType: "internlm2", isPaired: true }],
  [
    "minicpm",
    {
      modelType: "minicpm",
      isPaired: true,
      config: ({ optional, required }) => ({
        scale_emb: optional("embedding_scale"),
        scale_depth: (optional("residual_scale") ?? 1) * Math.sqrt(required("block_count")),
        dim_model_base: required("embedding_length") / (optional("logit_scale") ?? 1),
      }),
    },
  ],
  [
    "minicpm3",
    {
      modelType: "minicpm3",
      names: {
        attn_q_a: "self_attn.q_a_proj",
        attn_q_b: "self_attn.q_b_proj",
        attn_q_a_norm: "self_attn.q_a_layernorm",
        attn_kv_a_mqa: "self_attn.kv_a_proj_with_mqa",
        attn_kv_a_norm: "self_attn.kv_a_layernorm",
        attn_kv_b: "self_attn.kv_b_proj",
      },
      config: ({ required }) => ({
        // Constants of the only such model, as in llama.cpp: the file lacks these keys.
        scale_emb: 12,
        scale_depth: 1.4,
        dim_model_base: 256,
        q_lora_rank: required("attention.q_lora_rank"),
        kv_lora_rank: required("attention.kv_lora_rank"),
        qk_rope_head_dim: required("rope.dimension_count"),
        qk_nope_head_dim: required("attention.key_length") - required("rope.dimension_count"),
        partial_rotary_factor: 1,
      }),
    },
  ],
  [
    "mistral3",
    {
      modelType: "ministral3",
      isPaired: true,
      config: ({ optional }) => {
        const [beta, base] = [optional("attention.temperature_scale"), optional("rope.freq_base")];
        return {
          // A file without a scale for attention's temperature is a Mistral, not a Ministral.
          ...(beta === undefined && { model_type: "mistral" }),
          rope_parameters: {
            rope_theta: base,
            llama_4_scaling_beta: beta,
            original_max_position_embeddings: optional("rope.scaling.original_context_length"),
          },
        };
      },
    },
  ],
  [
    "nanbeige",
    {
      modelType: "nanbeige",
      isPaired: true,
      config: ({ optional }) => ({
        num_loops: optional("num_loops"),
        skip_loop_final_norm: optional("skip_loop_final_norm") === 1,
      }),
    },
  ],
  ["nemotron", { modelType: "nemotron" }],
  [
    "olmo",
    {
      modelType: "olmo",
      isPaired: true,
      config: ({ optional }) => ({ clip_qkv: optional("attention.clamp_kqv") }),
    },
  ],
  [
    "openelm",
    {
      modelType: "openelm",
      isUneven: true,
      config: ({ list, required }) => ({
        num_query_heads: list("attention.head_count"),
        num_kv_heads: list("attention.head_count_kv"),
        ffn_multipliers: list("feed_forward_length").map(
          (width) => width / required("embedding_length"),
        ),
        ffn_dim_divisor: 1,
      }),
    },
  ],
  ["phi2", { modelType: "phi" }],
  [
    "plamo",
    {
      modelType: "plamo",
      names: { attn_norm: "norm" },
      config: ({ required }) => ({
        ...rowsInOrder,
        n_shared_head: required("attention.head_count") / required("attention.head_count_kv"),
      }),
    },
  ],
  [
    "plamo3",
    {
      modelType: "plamo3",
      windowPeriod: 8,
      names: {
        ...joinedHalves,
        attn_norm: "pre_mixer_norm",
        post_attention_norm: "post_mixer_norm",
        ffn_norm: "pre_mlp_norm",
        post_ffw_norm: "post_mlp_norm",
      },
      config: ({ optional }) => ({ rope_local_theta: optional("rope.freq_base_swa") }),
    },
  ],
  ["qwen", { modelType: "qwen" }],
  ["qwen2vl", { modelType: "qwen2_vl" }],
  ["qwen3vl", { modelType: "qwen3_vl" }],
  [
    "seed_oss",
    { modelType: "seed_oss", names: { post_attention_norm: "post_attention_layernorm" } },
  ],
  [
    "stablelm",
    {
      modelType: "stablelm",
      names: { attn_q_norm: "self_attn.q_layernorm", attn_k_norm: "self_attn.k_layernorm" },
      config: (_, gguf) => ({
        // Derived from the tensors, because the file's flag is wrong in some models.
        use_parallel_residual: !gguf.tensors.has("blk.0.ffn_norm.weight"),
        qk_layernorm: hasNorms(gguf),
      }),
    },
  ],
  ["starcoder", { modelType: "gpt_bigcode", config: innerSize }],
  ["starcoder2", { modelType: "starcoder2" }],
  [
    "talkie",
    {
      modelType: "talkie",
      names: {
        attn_q_norm: "attn.head_gain.head_g.",
        "attn_output.scale": "attn_gain.a_g.",
        "ffn_down.scale": "mlp_gain.a_g.",
        layer_output_scale: "embed_skip.a_g.",
      },
      config: ({ required }) => ({ rotates_forwards: true, logit_gain: required("logit_scale") }),
    },
  ],
  ["xverse", { modelType: "xverse", isPaired: true }],
]);
