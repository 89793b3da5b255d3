// Models whose heads, channels and widths divide evenly among 2, 3 and 4 ranks, also where 32 numbers are quantized
// together. All their weights are 0: they are measured, not computed with.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { bytesOf, type FileTensor, writeSafetensors } from "../../src/self-test/tiny-weights.ts";

type Shapes = Record<string, readonly number[]>;

export type WideModel = {
  config: Record<string, unknown> & { model_type: string };
  tensors: Shapes;
};

const [DIMS, HEADS, HEAD_DIM, TAPS] = [384, 12, 32, 4];
const WIDTH = HEADS * HEAD_DIM;
const VOCABULARY = 240;

const common = {
  vocab_size: VOCABULARY,
  max_position_embeddings: 256,
  num_attention_heads: HEADS,
  num_key_value_heads: HEADS,
  head_dim: HEAD_DIM,
  rms_norm_eps: 1e-5,
};

/** Tensors of one shape. */
function alike(names: string, shape: readonly number[]): Shapes {
  return Object.fromEntries(names.split(" ").map((name) => [name, shape]));
}

/** The same tensors in each layer. */
function inLayers(prefix: string, layers: number, tensors: Shapes): Shapes {
  const names = Object.entries(tensors);
  const all = Array.from({ length: layers }, (_, i) =>
    names.map(([name, shape]) => [`${prefix}.${i}.${name}`, shape] as const),
  );
  return Object.fromEntries(all.flat());
}

function under(prefix: string, tensors: Shapes): Shapes {
  return Object.fromEntries(
    Object.entries(tensors).map(([name, shape]) => [`${prefix}.${name}`, shape]),
  );
}

function mlp(
  dims: number,
  width: number,
  [gate, up, down] = ["gate_proj", "up_proj", "down_proj"],
) {
  return {
    [`${gate}.weight`]: [width, dims],
    [`${up}.weight`]: [width, dims],
    [`${down}.weight`]: [dims, width],
  };
}

/** Matrices with a bias each. */
function biased(matrices: Shapes): Shapes {
  const biases = Object.entries(matrices).map(
    ([name, [rows]]) => [name.replace(/weight$/, "bias"), [rows!]] as const,
  );
  return { ...matrices, ...Object.fromEntries(biases) };
}

function llama(): WideModel {
  const [dims, layers, width] = [WIDTH, 12, 1536];
  const layer = {
    ...under("self_attn", {
      ...alike("q_proj.weight k_proj.weight v_proj.weight o_proj.weight", [dims, dims]),
    }),
    ...under("mlp", mlp(dims, width)),
    ...alike("input_layernorm.weight post_attention_layernorm.weight", [dims]),
  };
  return {
    config: {
      ...common,
      model_type: "llama",
      hidden_size: dims,
      num_hidden_layers: layers,
      intermediate_size: width,
      tie_word_embeddings: true,
    },
    tensors: {
      "model.embed_tokens.weight": [VOCABULARY, dims],
      "model.norm.weight": [dims],
      ...inLayers("model.layers", layers, layer),
    },
  };
}

/** With keys and queries of its own for each head, and one norm over all of them. */
function mamba2(): WideModel {
  const [layers, stateSize] = [2, 16];
  const channels = WIDTH + 2 * HEADS * stateSize;
  const mixer = {
    "in_proj.weight": [WIDTH + channels + HEADS, DIMS],
    "conv1d.weight": [channels, TAPS, 1],
    "conv1d.bias": [channels],
    ...alike("dt_bias A_log D", [HEADS]),
    "norm.weight": [WIDTH],
    "out_proj.weight": [DIMS, WIDTH],
  };
  return {
    config: {
      model_type: "mamba2",
      hidden_size: DIMS,
      num_hidden_layers: layers,
      num_heads: HEADS,
      head_dim: HEAD_DIM,
      n_groups: HEADS,
      state_size: stateSize,
      conv_kernel: TAPS,
      time_step_limit: [0, 100],
      vocab_size: VOCABULARY,
      tie_word_embeddings: true,
    },
    tensors: backbone(layers, mixer),
  };
}

/** Of layers that are a norm and a mixer. */
function backbone(layers: number, mixer: WideModel["tensors"]): WideModel["tensors"] {
  return {
    "backbone.embeddings.weight": [VOCABULARY, DIMS],
    "backbone.norm_f.weight": [DIMS],
    ...inLayers("backbone.layers", layers, { ...under("mixer", mixer), "norm.weight": [DIMS] }),
  };
}

function mamba(): WideModel {
  const [layers, stateSize, rank] = [2, 16, 32];
  const mixer = {
    "in_proj.weight": [2 * WIDTH, DIMS],
    "conv1d.weight": [WIDTH, TAPS, 1],
    "conv1d.bias": [WIDTH],
    "x_proj.weight": [rank + 2 * stateSize, WIDTH],
    "dt_proj.weight": [WIDTH, rank],
    "dt_proj.bias": [WIDTH],
    A_log: [WIDTH, stateSize],
    D: [WIDTH],
    "out_proj.weight": [DIMS, WIDTH],
  };
  return {
    config: {
      model_type: "mamba",
      hidden_size: DIMS,
      intermediate_size: WIDTH,
      num_hidden_layers: layers,
      state_size: stateSize,
      conv_kernel: TAPS,
      time_step_rank: rank,
      vocab_size: VOCABULARY,
    },
    tensors: backbone(layers, mixer),
  };
}

function lfm2(): WideModel {
  const [dims, layers, taps] = [WIDTH, 2, 3];
  const layer = {
    "conv.in_proj.weight": [3 * dims, dims],
    "conv.conv.weight": [dims, taps, 1],
    "conv.out_proj.weight": [dims, dims],
    ...under("feed_forward", mlp(dims, WIDTH, ["w1", "w3", "w2"])),
    ...alike("operator_norm.weight ffn_norm.weight", [dims]),
  };
  return {
    config: {
      ...common,
      model_type: "lfm2",
      hidden_size: dims,
      num_hidden_layers: layers,
      block_ff_dim: WIDTH,
      intermediate_size: WIDTH,
      conv_L_cache: taps,
      full_attn_idxs: [],
    },
    tensors: {
      "model.embed_tokens.weight": [VOCABULARY, dims],
      "model.embedding_norm.weight": [dims],
      ...inLayers("model.layers", layers, layer),
    },
  };
}

function kimiLinear(): WideModel {
  const [layers, hidden] = [2, 384];
  const mixer = {
    ...alike("q_proj.weight k_proj.weight v_proj.weight", [WIDTH, DIMS]),
    ...alike("q_conv1d.weight k_conv1d.weight v_conv1d.weight", [WIDTH, 1, TAPS]),
    "f_a_proj.weight": [HEAD_DIM, DIMS],
    "f_b_proj.weight": [WIDTH, HEAD_DIM],
    "b_proj.weight": [HEADS, DIMS],
    "g_a_proj.weight": [HEAD_DIM, DIMS],
    "g_b_proj.weight": [WIDTH, HEAD_DIM],
    A_log: [1, 1, HEADS, 1],
    dt_bias: [WIDTH],
    "o_norm.weight": [HEAD_DIM],
    "o_proj.weight": [DIMS, WIDTH],
  };
  const layer = {
    ...under("self_attn", mixer),
    ...under("mlp", mlp(DIMS, hidden)),
    ...alike("input_layernorm.weight post_attention_layernorm.weight", [DIMS]),
  };
  return {
    config: {
      ...common,
      model_type: "kimi_linear",
      hidden_size: DIMS,
      num_hidden_layers: layers,
      intermediate_size: hidden,
      linear_attn_config: {
        ...{ kda_layers: [1, 2], num_heads: HEADS },
        ...{ head_dim: HEAD_DIM, short_conv_kernel_size: TAPS },
      },
      kv_lora_rank: 32,
      qk_nope_head_dim: 32,
      qk_rope_head_dim: 32,
      v_head_dim: 32,
      num_experts: 2,
      num_experts_per_token: 1,
      moe_intermediate_size: 32,
      first_k_dense_replace: layers,
    },
    tensors: {
      "model.embed_tokens.weight": [VOCABULARY, DIMS],
      "model.norm.weight": [DIMS],
      "lm_head.weight": [VOCABULARY, DIMS],
      ...inLayers("model.layers", layers, layer),
    },
  };
}

/** Attention whose heads forget at a fixed rate, and one layer of the usual one. */
function bailingMoeLinear(): WideModel {
  const [layers, hidden] = [2, 384];
  const layer = {
    "attention.query_key_value.weight": [3 * WIDTH, DIMS],
    "attention.dense.weight": [DIMS, WIDTH],
    ...under("mlp", mlp(DIMS, hidden)),
    ...alike("input_layernorm.weight post_attention_layernorm.weight", [DIMS]),
  };
  return {
    config: {
      ...common,
      model_type: "bailing_moe_linear",
      hidden_size: DIMS,
      num_hidden_layers: layers,
      intermediate_size: hidden,
      layer_group_size: layers,
      group_norm_size: HEADS,
      num_experts: 2,
      num_experts_per_tok: 1,
      num_shared_experts: 1,
      norm_topk_prob: true,
      moe_intermediate_size: 32,
      first_k_dense_replace: layers,
    },
    tensors: {
      "model.word_embeddings.weight": [VOCABULARY, DIMS],
      "model.norm.weight": [DIMS],
      "lm_head.weight": [VOCABULARY, DIMS],
      ...inLayers("model.layers", layers, layer),
      "model.layers.0.attention.g_proj.weight": [WIDTH, DIMS],
      "model.layers.0.attention.g_norm.weight": [WIDTH],
    },
  };
}

function rwkv7(): WideModel {
  const [layers, hidden, rank] = [2, 1536, 32];
  // What it keeps of a head is much beside what it keeps of the last token, which all ranks have.
  const headDim = 64;
  const dims = HEADS * headDim;
  const shares = ["r", "w", "k", "v", "a", "g"].map((part) => [`x_${part}`, [1, 1, dims]] as const);
  const lowRank = (name: string) => ({
    [`${name}.lora.0.weight`]: [rank, dims],
    [`${name}.lora.2.weight`]: [dims, rank],
  });
  const mixer = {
    ...Object.fromEntries(shares),
    ...alike("k_k k_a r_k", [HEADS, headDim]),
    ...alike("r_proj.weight k_proj.weight v_proj.weight o_proj.weight", [dims, dims]),
    ...biased({ "g_norm.weight": [dims] }),
    ...lowRank("w_lora"),
    ...lowRank("a_lora"),
    ...lowRank("v_lora"),
    ...lowRank("g_lora"),
  };
  const layer = {
    ...under("attn", mixer),
    "ffn.key.weight": [hidden, dims],
    "ffn.value.weight": [dims, hidden],
    "ffn.x_k": [dims],
    ...biased({ "attn_norm.weight": [dims], "ffn_norm.weight": [dims] }),
  };
  const ranks = ["a", "v", "gate", "decay"].map((part) => [`${part}_low_rank_dim`, rank] as const);
  return {
    config: {
      model_type: "rwkv7",
      hidden_size: dims,
      intermediate_size: hidden,
      num_hidden_layers: layers,
      head_dim: headDim,
      ...Object.fromEntries(ranks),
      vocab_size: VOCABULARY,
    },
    tensors: {
      "model.embeddings.weight": [VOCABULARY, dims],
      ...biased({ "model.norm.weight": [dims], "model.layers.0.pre_norm.weight": [dims] }),
      "lm_head.weight": [VOCABULARY, dims],
      ...inLayers("model.layers", layers, layer),
    },
  };
}

function recurrentGemma(): WideModel {
  const [dims, layers, hidden] = [WIDTH, 2, 384];
  const gate = (name: string) => ({
    [`rg_lru.${name}_weight`]: [HEADS, HEAD_DIM, HEAD_DIM],
    [`rg_lru.${name}_bias`]: [HEADS, HEAD_DIM],
  });
  const mixer = {
    ...biased({
      ...alike("linear_y.weight linear_x.weight linear_out.weight", [dims, dims]),
      "conv_1d.weight": [dims, TAPS, 1],
    }),
    "rg_lru.recurrent_param": [dims],
    ...gate("input_gate"),
    ...gate("recurrent_gate"),
  };
  const layer = {
    ...under("temporal_block", mixer),
    ...under("mlp_block", biased(mlp(dims, hidden))),
    ...alike("temporal_pre_norm.weight channel_pre_norm.weight", [dims]),
  };
  return {
    config: {
      ...common,
      model_type: "recurrent_gemma",
      hidden_size: dims,
      num_hidden_layers: layers,
      intermediate_size: 2 * hidden,
      conv1d_width: TAPS,
      block_types: ["recurrent"],
    },
    tensors: {
      "model.embed_tokens.weight": [VOCABULARY, dims],
      "model.final_norm.weight": [dims],
      "lm_head.weight": [VOCABULARY, dims],
      ...inLayers("model.layers", layers, layer),
    },
  };
}

/** By what most of their layers are. */
export const wideModels = {
  attention: llama(),
  "Mamba 2": mamba2(),
  Mamba: mamba(),
  "short convolutions": lfm2(),
  "delta attention": kimiLinear(),
  "fading attention": bailingMoeLinear(),
  "RWKV 7": rwkv7(),
  "gated recurrences": recurrentGemma(),
} satisfies Record<string, WideModel>;

/** Matrices are quantized with 4 bits, 32 numbers together, if they are to be. */
export function writeWideModel(
  path: string,
  { config, tensors }: WideModel,
  isQuantized: boolean,
): void {
  const [bits, groupSize] = [4, 32];
  const file = new Map<string, FileTensor>();
  const put = (name: string, shape: readonly number[], dtype: "F32" | "U32" = "F32") => {
    const bytes = bytesOf(new Uint32Array(shape.reduce((a, b) => a * b)));
    file.set(name, { dtype, shape: [...shape], bytes });
  };
  for (const [name, shape] of Object.entries(tensors)) {
    const [rows, columns] = shape as [number, number];
    if (!isQuantized || shape.length !== 2 || !name.endsWith(".weight")) {
      put(name, shape);
      continue;
    }
    put(name, [rows, (columns * bits) / 32], "U32");
    for (const part of ["scales", "biases"])
      put(name.replace(/weight$/, part), [rows, columns / groupSize]);
  }
  const quantization = isQuantized ? { quantization: { bits, group_size: groupSize } } : {};
  writeFileSync(join(path, "config.json"), JSON.stringify({ ...config, ...quantization }));
  writeSafetensors(join(path, "model.safetensors"), file);
}
