// GGUF files of families as llama.cpp's converter writes them: the tiny models of mlx-lm's goldens, under the names that
// gguf-py has for their tensors, with rows in the converter's order, give the same logits.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { array } from "../../src/mlx/array.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { ggufFamilies } from "../../src/model/gguf-families.ts";
import { loadModel } from "../../src/model/load.ts";
import type { FileTensor } from "../../src/self-test/tiny-weights.ts";
import families from "../golden/models/gguf-names.json" with { type: "json" };
import { ContiguousKv, contiguousStep } from "../support/contiguous-kv.ts";
import { deviceOf } from "../support/devices.ts";
import { type GgufFile, writeGguf } from "../support/gguf-file.ts";
import { useMlx } from "../support/mlx.ts";
import { goldenOf, plainTensors, tinyCase } from "../support/tiny-models.ts";

useMlx();

const folder = mkdtempSync(join(tmpdir(), "gguf-families-"));
afterAll(() => rmSync(folder, { recursive: true }));

type Tensors = Map<string, FileTensor>;
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

/** What the converter does beside: to the metadata, and to tensors under the names of GGUF. */
type More = {
  metadata?: GgufFile["metadata"];
  change?: (all: Tensors, metadata: GgufFile["metadata"]) => void;
};

const more: Record<string, More> = {
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
  deepseek_v3: {
    metadata: { ...LATENT, ...SIGMOID, "rope.scaling.yarn_log_multiplier": 0.1 },
  },
  exaone4: {
    metadata: {
      "attention.sliding_window_pattern": [true, true, true, false],
      "rope.scaling.type": "linear",
      "rope.scaling.factor": 2,
    },
  },
  exaone: {
    change: (all) => all.set("rope_freqs.weight", floats(llama3Factors(HEAD))),
  },
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
    change: (all) => {
      nameExperts(all);
      pairHeads(all);
    },
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
      all.set("rope_factors_long.weight", floats(Float32Array.of(1, 1.5, 2, 2.5)));
      all.set("rope_factors_short.weight", floats(new Float32Array(4).fill(1)));
    },
  },
  minimax: { metadata: { ...SIGMOID, "rope.dimension_count": 16 }, change: nameExperts },
  mixtral: {
    change: (all) => {
      nameExperts(all);
      pairHeads(all);
    },
  },
  mistral3: {
    metadata: {
      "rope.freq_base": 10_000,
      "rope.scaling.original_context_length": 16,
      "attention.temperature_scale": 0.1,
    },
    change: pairHeads,
  },
  "nemotron-nas-deci": {
    metadata: {
      "attention.head_count": Int32Array.of(4, 0, 4, 4),
      "attention.head_count_kv": Int32Array.of(2, 0, 0, 1),
      feed_forward_length: Int32Array.of(256, 512, 256, 0),
      "attention.key_length": 16,
    },
    change: pairHeads,
  },
  nemotron: {
    metadata: { "rope.dimension_count": 16 },
    change: (all) => addToNorms(all, () => 1),
  },
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

test("there is a file of every family", () => {
  // Mixtral is written as a Llama with experts.
  const tested = new Set(Object.values(families).map(({ architecture }) => architecture));
  expect(tested).toEqual(new Set([...ggufFamilies.keys(), "llama"]));
});

test.each(Object.entries(families))("%s", (name, { architecture, names }) => {
  const tiny = tinyCase(name);
  const { metadata = {}, change } = more[name] ?? {};
  const tensors = renamed(plainTensors(tiny), names);
  const outside: GgufFile["metadata"] = {};
  change?.(tensors, outside);
  const own = Object.entries({ ...numbersOf(tiny.file_config ?? tiny.config), ...metadata });
  const path = writeGguf(join(folder, `${name}.gguf`), {
    metadata: {
      "general.architecture": architecture,
      ...outside,
      ...Object.fromEntries(own.map(([key, value]) => [`${architecture}.${key}`, value])),
    },
    tensors: Object.fromEntries(
      Array.from(tensors, ([key, { shape, bytes }]) => [key, { type: "F32", shape, data: bytes }]),
    ),
  });
  const { prompt, last } = goldenOf(tiny);
  const model = loadModel(path, { device: deviceOf("cpu"), dtype: "float32" });
  const kv = new ContiguousKv();
  try {
    using _ = new Scope();
    const step = contiguousStep([{ kv, count: prompt.length }]);
    const logits = model.logits(model.forward(array(Int32Array.from(prompt)), step)).numbers();
    const found = logits.slice(-last.length);
    const error = Math.max(...found.map((x, i) => Math.abs(x - last[i]!)));
    expect(error).toBeLessThan(1e-4);
  } finally {
    kv.free();
    model.free();
  }
});

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

function rename(all: Tensors, from: RegExp, to: string): void {
  for (const [name, tensor] of [...all]) {
    if (!from.test(name)) continue;
    all.delete(name);
    all.set(name.replace(from, to), tensor);
  }
}

/** Those whose authors have a tensor an expert, or both halves in one. */
function nameExperts(all: Tensors): void {
  const experts = /^model\.layers\.(\d+)\.block_sparse_moe\.switch_mlp\.(\w+)_proj\./;
  rename(all, experts, "blk.$1.ffn_$2_exps.");
}

/** Each column divided by its length. */
function normedColumns(tensor: FileTensor): FileTensor {
  const [numbers, columns] = [numbersIn(tensor), tensor.shape[1]!];
  const sums = new Float64Array(columns);
  for (const [i, x] of numbers.entries()) sums[i % columns]! += x * x;
  const made = numbers.map((x, i) => x / (Math.sqrt(sums[i % columns]!) + 1e-7));
  return { ...floats(made), shape: tensor.shape };
}

function eachOf(all: Tensors, names: RegExp, change: (tensor: FileTensor) => FileTensor): void {
  for (const [name, tensor] of all) if (names.test(name)) all.set(name, change(tensor));
}

function addToNorms(all: Tensors, added: (name: string) => number): void {
  for (const [name, tensor] of all) {
    if (!/norm(\.weight)?$/.test(name)) continue;
    all.set(name, floats(numbersIn(tensor).map((x) => x + added(name))));
  }
}

/** The converter's order of a llama's queries and keys. */
function pairHeads(all: Tensors): void {
  const heads = (name: string, tensor: FileTensor) =>
    all.set(name, paired(tensor, tensor.shape[0]! / HEAD));
  for (const [name, tensor] of all) if (/attn_[qk]\./.test(name)) heads(name, tensor);
}

/** (heads, 2, D / 2) becomes (heads, D / 2, 2) */
function paired(tensor: FileTensor, heads: number): FileTensor {
  const each = Array.from({ length: heads }, (_, i) => part(tensor, i, heads));
  return below(each.map((head) => regrouped(head, 2, head.shape[0]! / 2)));
}

/** Rows (a, b, ...) as (b, a, ...) */
function regrouped(tensor: FileTensor, a: number, b: number): FileTensor {
  const order = Array.from({ length: a * b }, (_, i) => (i % a) * b + Math.floor(i / a));
  return { ...below(order.map((row) => part(tensor, row, a * b))), shape: tensor.shape };
}

function part(tensor: FileTensor, index: number, parts: number): FileTensor {
  const [rows, ...rest] = tensor.shape as [number, ...number[]];
  const size = tensor.bytes.length / parts;
  const bytes = tensor.bytes.subarray(index * size, (index + 1) * size);
  return { ...tensor, shape: [rows / parts, ...rest], bytes };
}

function below(parts: readonly FileTensor[]): FileTensor {
  const rows = parts.reduce((sum, { shape }) => sum + shape[0]!, 0);
  const bytes = Buffer.concat(parts.map((each) => each.bytes));
  return { ...parts[0]!, shape: [rows, ...parts[0]!.shape.slice(1)], bytes };
}

function exchanged(tensor: FileTensor): FileTensor {
  const [rows, columns] = tensor.shape as [number, number];
  const numbers = numbersIn(tensor);
  const made = numbers.map((_, i) => numbers[(i % rows) * columns + Math.floor(i / rows)]!);
  return { ...floats(made), shape: [columns, rows] };
}

function numbersIn({ bytes }: FileTensor): Float32Array {
  return new Float32Array(new Uint8Array(bytes).buffer);
}

function floats(numbers: Float32Array): FileTensor {
  return { dtype: "F32", shape: [numbers.length], bytes: new Uint8Array(numbers.buffer) };
}

/** Of the scaling that the tiny EXAONE has. */
function llama3Factors(dims: number): Float32Array {
  return Float32Array.from({ length: dims / 2 }, (_, i) => {
    const wave = 2 * Math.PI * 10_000 ** ((2 * i) / dims);
    if (wave < 64 / 4) return 1;
    if (wave > 64) return 8;
    const smooth = (64 / wave - 1) / 3;
    return 1 / ((1 - smooth) / 8 + smooth);
  });
}
