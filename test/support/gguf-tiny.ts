// GGUF files of the tiny models, as llama.cpp's converter writes them.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type LoadedModel, type LoadOptions, loadModel } from "../../src/model/load.ts";
import type { FileTensor } from "../../src/self-test/tiny-weights.ts";
import families from "../golden/models/gguf-names.json" with { type: "json" };
import {
  addToNorms,
  below,
  type Conversion,
  eachOf,
  exchanged,
  floats,
  fuseExperts,
  inTurn,
  llama3Factors,
  nameExperts,
  normedColumns,
  numbersIn,
  paired,
  pairHeads,
  part,
  regrouped,
  rename,
  type Tensors,
} from "./gguf-conversion.ts";
import { type GgufFile, type GgufFileTensor, writeGguf } from "./gguf-file.ts";
import { layered } from "./gguf-layered.ts";
import { recurrent } from "./gguf-recurrent.ts";
import { plainTensors, tinyCase } from "./tiny-models.ts";

export { families };

type Numbers = Record<string, number>;

/** Keys of configurations -> those of GGUF, as most converters write them. */
const keys: Readonly<Record<string, readonly string[]>> = {
  block_count: ["num_hidden_layers", "num_layers", "n_layer"],
  context_length: ["max_position_embeddings", "n_positions"],
  embedding_length: ["hidden_size", "n_embd"],
  feed_forward_length: ["intermediate_size", "n_inner"],
  "attention.head_count": ["num_attention_heads", "n_head"],
  "attention.head_count_kv": ["num_key_value_heads"],
  "attention.key_length": ["head_dim"],
  "attention.value_length": ["head_dim"],
  "attention.layer_norm_rms_epsilon": ["rms_norm_eps"],
  "attention.q_lora_rank": ["q_lora_rank"],
  "attention.kv_lora_rank": ["kv_lora_rank"],
  "attention.layer_norm_epsilon": [
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_epsilon",
    "norm_eps",
  ],
  "attention.sliding_window": ["sliding_window", "window_size"],
  "rope.freq_base": ["rope_theta", "rotary_emb_base"],
  "rope.freq_base_swa": ["rope_local_theta"],
  logit_scale: ["logit_scale"],
  expert_count: ["n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"],
  expert_used_count: ["num_experts_per_tok", "moe_k", "moe_topk"],
  expert_feed_forward_length: ["moe_intermediate_size"],
  expert_shared_count: [
    "n_shared_experts",
    "num_shared_experts",
    "moe_num_shared_experts",
    "num_shared_expert",
  ],
  expert_shared_feed_forward_length: ["shared_expert_intermediate_size"],
  expert_weights_scale: ["routed_scaling_factor", "route_scale"],
  expert_group_count: ["n_group"],
  expert_group_used_count: ["topk_group"],
  leading_dense_block_count: ["first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"],
  interleave_moe_layer_step: ["moe_layer_interval"],
};

/** Of DeepSeek's latent attention: what is kept of a token is one head. */
const LATENT = {
  "attention.head_count_kv": 1,
  "attention.key_length": 48,
  "attention.value_length": 32,
  "attention.key_length_mla": 48,
  "attention.value_length_mla": 32,
  "rope.dimension_count": 16,
  "rope.scaling.type": "yarn",
  "rope.scaling.factor": 4,
  "rope.scaling.original_context_length": 32,
  "rope.scaling.yarn_beta_fast": 8,
  "rope.scaling.yarn_beta_slow": 1,
};

/** How experts are scored. */
const SIGMOID = { expert_gating_func: 2 };

/** A head's size, and the sizes of a layer. */
const [HEAD, HEADS, KV_HEADS] = [16, 4, 2];

const more: Record<string, Conversion> = {
  ...layered,
  ...recurrent,
  afmoe: {
    metadata: {
      ...SIGMOID,
      expert_weights_scale: 2.826,
      "attention.sliding_window_pattern": [true, true, false, true],
    },
  },
  bailing_moe: { metadata: { ...SIGMOID, "rope.dimension_count": 8 } },
  "bailing_moe-softmax": {
    change: (all) => {
      for (const layer of [0, 1]) {
        const name = `model.layers.${layer}.attention.query_key_value.weight`;
        const qkv = all.get(name)!;
        const rows = (from: number, to: number) =>
          below(Array.from({ length: to - from }, (_, i) => part(qkv, from + i, 8)));
        all.delete(name);
        all.set(`blk.${layer}.attn_q.weight`, paired(rows(0, 4), HEADS));
        all.set(`blk.${layer}.attn_k.weight`, paired(rows(4, 6), KV_HEADS));
        all.set(`blk.${layer}.attn_v.weight`, rows(6, 8));
      }
      eachOf(all, /^output\.weight$/, normedColumns);
    },
  },
  bitnet: {
    change: (all) =>
      rename(all, /^model\.layers\.(\d+)\.\w+\.(attn|ffn)_sub_norm/, "blk.$1.$2_sub_norm"),
  },
  apertus: {
    change: (all, metadata) => {
      all.set("rope_freqs.weight", floats(llama3Factors(HEAD)));
      for (const own of ["alpha_p", "alpha_n", "beta", "eps"]) {
        const names = [0, 1].map((layer) => `model.layers.${layer}.mlp.act_fn.${own}`);
        const numbers = names.flatMap((name) => [...numbersIn(all.get(name)!)]);
        metadata[`xielu.${own}`] = Float32Array.from(numbers);
        for (const name of names) all.delete(name);
      }
    },
  },
  dbrx: {
    metadata: {
      block_count: 2,
      embedding_length: 64,
      feed_forward_length: 32,
      "attention.head_count": HEADS,
      "attention.head_count_kv": KV_HEADS,
      "attention.clamp_kqv": 0.8,
      "attention.layer_norm_epsilon": 1e-5,
      expert_count: 4,
      expert_used_count: 2,
    },
    change: (all) => {
      const parts = { w1: "gate", v1: "up", w2: "down" };
      for (const layer of [0, 1]) {
        for (const [stored, name] of Object.entries(parts)) {
          const each = Array.from({ length: 4 }, (_, expert) => {
            const key = `transformer.blocks.${layer}.ffn.experts.${expert}.${stored}.weight`;
            const tensor = all.get(key)!;
            all.delete(key);
            return tensor;
          });
          const shape = [4, ...each[0]!.shape];
          all.set(`blk.${layer}.ffn_${name}_exps.weight`, { ...below(each), shape });
        }
      }
    },
  },
  deepseek: { change: pairHeads },
  deepseek_v2: { metadata: { ...LATENT, "rope.scaling.yarn_log_multiplier": 0.0707 } },
  deepseek_v3: { metadata: { ...LATENT, ...SIGMOID, "rope.scaling.yarn_log_multiplier": 0.1 } },
  exaone4: {
    metadata: {
      "attention.sliding_window_pattern": [true, true, true, false],
      "rope.scaling.type": "linear",
      "rope.scaling.factor": 2,
    },
  },
  exaone: { change: (all) => all.set("rope_freqs.weight", floats(llama3Factors(HEAD))) },
  gemma: { change: (all) => addToNorms(all, () => 1) },
  glm: { metadata: { "rope.dimension_count": 32 } },
  glm4_moe: { metadata: { ...SIGMOID, "rope.dimension_count": 16, nextn_predict_layers: 0 } },
  granitemoe: {
    metadata: {
      embedding_scale: 4,
      residual_scale: 0.5,
      "attention.scale": 0.125,
      logit_scale: 0.25,
    },
    change: inTurn(nameExperts, pairHeads),
  },
  "hunyuan-shared": {
    metadata: { "rope.freq_base": 10_000 * 4 ** (16 / 14), expert_feed_forward_length: 32 },
  },
  glm4: { metadata: { "rope.dimension_count": 16 } },
  gpt2: { metadata: { feed_forward_length: 256 } },
  "gpt_neox-sequential": {
    metadata: { "rope.dimension_count": 8, use_parallel_residual: false },
    // (heads, 3, D) becomes (3, heads, D).
    change: (all) => eachOf(all, /attn_qkv/, (tensor) => regrouped(tensor, HEADS, 3)),
  },
  hunyuan_v1_dense: { metadata: { "rope.freq_base": 10_000 * 1000 ** (32 / 30) } },
  internlm2: {
    change: (all) => {
      for (const [name, tensor] of [...all]) {
        const [, layer, kind] = /^model\.layers\.(\d+)\.attention\.wqkv\.(\w+)$/.exec(name) ?? [];
        if (!layer) continue;
        all.delete(name);
        const rows = Array.from({ length: KV_HEADS * 4 }, (_, i) => part(tensor, i, KV_HEADS * 4));
        const of = (at: number[]) => below(rows.filter((_, i) => at.includes(i % 4)));
        all.set(`blk.${layer}.attn_q.${kind}`, paired(of([0, 1]), HEADS));
        all.set(`blk.${layer}.attn_k.${kind}`, paired(of([2]), KV_HEADS));
        all.set(`blk.${layer}.attn_v.${kind}`, of([3]));
      }
    },
  },
  minicpm: {
    metadata: { embedding_scale: 12, residual_scale: 1.4 / Math.SQRT2, logit_scale: 4 },
    change: pairHeads,
  },
  minicpm3: {
    metadata: {
      "attention.q_lora_rank": 32,
      "attention.kv_lora_rank": 32,
      "attention.key_length": 24,
      "rope.dimension_count": 8,
      "rope.scaling.original_context_length": 64,
    },
    change: (all) => {
      const factors = floats(Float32Array.of(1, 1.5, 2, 2.5));
      for (const kind of ["long", "short"]) all.set(`rope_factors_${kind}.weight`, factors);
    },
  },
  minimax: { metadata: { ...SIGMOID, "rope.dimension_count": 16 }, change: nameExperts },
  mixtral: { change: inTurn(nameExperts, pairHeads) },
  mistral3: {
    metadata: {
      "rope.freq_base": 10_000,
      "rope.scaling.original_context_length": 16,
      "attention.temperature_scale": 0.1,
    },
    change: pairHeads,
  },
  mistral4: {
    metadata: {
      ...LATENT,
      "attention.temperature_scale": 0.3,
      "rope.freq_base": 10_000,
      "rope.scaling.original_context_length": 16,
      "rope.scaling.yarn_beta_fast": 4,
      "rope.scaling.yarn_log_multiplier": 0.1,
      expert_weights_norm: true,
    },
    change: fuseExperts,
  },
  nanbeige: { metadata: { num_loops: 2, skip_loop_final_norm: false }, change: pairHeads },
  "nemotron-nas-deci": {
    metadata: {
      "attention.head_count": Int32Array.of(4, 0, 4, 4),
      "attention.head_count_kv": Int32Array.of(2, 0, 0, 1),
      feed_forward_length: Int32Array.of(256, 512, 256, 0),
      "attention.key_length": 16,
    },
    change: pairHeads,
  },
  nemotron: { metadata: { "rope.dimension_count": 16 }, change: (all) => addToNorms(all, () => 1) },
  "olmo-transformers": {
    metadata: { "attention.layer_norm_epsilon": 1e-5 },
    change: (all) => {
      // Of what is one matrix in mlx-lm's model.
      for (const layer of [0, 1]) {
        const qkv = all.get(`model.transformer.blocks.${layer}.att_proj.weight`)!;
        for (const [i, own] of ["q", "k", "v"].entries()) {
          const rows = part(qkv, i, 3);
          all.set(`blk.${layer}.attn_${own}.weight`, own === "v" ? rows : paired(rows, HEADS));
        }
        all.delete(`model.transformer.blocks.${layer}.att_proj.weight`);
        const both = all.get(`blk.${layer}.ffn_gate.weight`)!;
        all.set(`blk.${layer}.ffn_up.weight`, part(both, 0, 2));
        all.set(`blk.${layer}.ffn_gate.weight`, part(both, 1, 2));
      }
    },
  },
  openelm: {
    metadata: {
      block_count: 3,
      context_length: 256,
      embedding_length: 64,
      "attention.head_count": Int32Array.of(4, 4, 6),
      "attention.head_count_kv": Int32Array.of(1, 2, 3),
      "attention.key_length": 16,
      feed_forward_length: Int32Array.of(32, 64, 128),
      "attention.layer_norm_rms_epsilon": 1e-6,
      "rope.freq_base": 10_000,
      "rope.dimension_count": 16,
    },
    change: (all) => {
      for (const [name, both] of [...all]) {
        const [, layer] = /^transformer\.layers\.(\d+)\.ffn\.proj_1\./.exec(name) ?? [];
        if (!layer) continue;
        all.delete(name);
        all.set(`blk.${layer}.ffn_gate.weight`, part(both, 0, 2));
        all.set(`blk.${layer}.ffn_up.weight`, part(both, 1, 2));
      }
    },
  },
  "phimoe-mini": { change: nameExperts },
  phi: { metadata: { "rope.dimension_count": 8 } },
  plamo: {
    metadata: { "attention.head_count_kv": 2 },
    change: (all) => {
      // (2, KV heads, D) becomes (KV heads, 2, D), of columns too.
      eachOf(all, /attn_q\./, (tensor) => regrouped(tensor, 2, 2));
      eachOf(all, /attn_output\./, (tensor) => exchanged(regrouped(exchanged(tensor), 2, 2)));
    },
  },
  plamo3: {
    metadata: { "attention.sliding_window_pattern": 3 },
    change: (all) =>
      addToNorms(all, (name) => {
        if (name.includes("post_attention_norm")) return 1 / 5;
        return name.includes("post_ffw_norm") ? 1 / 5 ** 1.5 : 1;
      }),
  },
  "stablelm-parallel": {
    metadata: { "rope.dimension_count": 8, use_parallel_residual: true },
    change: (all) => {
      for (const layer of [0, 1]) {
        for (const [own, heads] of [
          ["q", HEADS],
          ["k", KV_HEADS],
        ] as const) {
          const names = Array.from(
            { length: heads },
            (_, i) => `model.layers.${layer}.self_attn.${own}_layernorm.norms.${i}.weight`,
          );
          const stacked = below(names.map((name) => all.get(name)!));
          all.set(`blk.${layer}.attn_${own}_norm.weight`, { ...stacked, shape: [heads, HEAD] });
          for (const name of names) all.delete(name);
        }
      }
    },
  },
  stablelm: { metadata: { "rope.dimension_count": 4, use_parallel_residual: true } },
  xverse: { change: pairHeads },
};

/** Tensors as they are. */
export const plain = ({ shape, bytes }: FileTensor): GgufFileTensor => {
  return { type: "F32", shape, data: bytes };
};

export function tinyGguf(name: string, store = plain): GgufFile {
  const { architecture, names } = families[name as keyof typeof families];
  const tiny = tinyCase(name);
  const { metadata = {}, change } = more[name] ?? {};
  const tensors = renamed(plainTensors(tiny), names);
  const outside: GgufFile["metadata"] = {};
  change?.(tensors, outside);
  const own = Object.entries({ ...numbersOf(tiny.file_config ?? tiny.config), ...metadata });
  return {
    metadata: {
      "general.architecture": architecture,
      ...outside,
      ...Object.fromEntries(own.map(([key, value]) => [`${architecture}.${key}`, value])),
    },
    tensors: Object.fromEntries(Array.from(tensors, ([key, tensor]) => [key, store(tensor)])),
  };
}

/** The model, as it is read from such a file. Its holder frees it. */
export function loadTinyGguf(name: string, options: LoadOptions): LoadedModel {
  const folder = mkdtempSync(join(tmpdir(), "tiny-gguf-"));
  try {
    const path = writeGguf(join(folder, "model.gguf"), tinyGguf(name));
    return loadModel(path, { ...options, dtype: "float32" });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** The numbers that a configuration has under one of the keys. */
function numbersOf(config: Record<string, unknown>): Numbers {
  const text = (config.text_config ?? config) as Record<string, unknown>;
  const found = Object.entries(keys).flatMap(([key, names]) => {
    const value = names.map((name) => text[name]).find((each) => typeof each === "number");
    return value === undefined ? [] : [[key, value]];
  });
  return Object.fromEntries(found);
}

/** N stands for the number of a layer. */
function renamed(tensors: Tensors, names: Readonly<Record<string, string | undefined>>): Tensors {
  return new Map(
    Array.from(tensors, ([name, tensor]) => {
      const layer = /(?<=\.)\d+(?=\.)/.exec(name)?.[0] ?? "";
      const found = names[name.replace(/(?<=\.)\d+(?=\.)/, "N")];
      return [found?.replace("N", layer) ?? name, tensor];
    }),
  );
}
