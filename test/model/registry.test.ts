import { describe, expect, test } from "bun:test";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { files, modelRows } from "../../scripts/model-table.ts";
import { LoadError } from "../../src/files/load-error.ts";
import { array } from "../../src/mlx/array.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { loadModel } from "../../src/model/load.ts";
import { architectureOf, architectures } from "../../src/model/registry.ts";
import { ContiguousKv, contiguousStep } from "../support/contiguous-kv.ts";
import { deviceOf } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { tinyCase, writeTinyModel } from "../support/tiny-models.ts";

useMlx();

const folder = temporaryFolder();

test("architectures are found by the model_type that Hugging Face gives them", () => {
  expect(architectureOf("mistral")).toBe(architectures.get("mistral")!);
});

describe("the table of mlx-lm's files", () => {
  const rows = modelRows();

  test("has every architecture, in order", () => {
    const types = [...architectures.keys()];
    expect(rows.flatMap(({ supported }) => supported).toSorted()).toEqual(types.toSorted());
    expect(types).toEqual(types.toSorted());
  });

  test("says why not of those that are not supported only", () => {
    const both = rows.filter(({ file, supported }) => supported.length > 0 && files[file] !== "");
    expect(both).toEqual([]);
  });

  test("is sorted", () => {
    const order = (a: string, b: string) => (a.toLowerCase() < b.toLowerCase() ? -1 : 1);
    expect(Object.keys(files)).toEqual(Object.keys(files).toSorted(order));
  });
});

describe("a model_type that is not supported", () => {
  test("is told with those that are", () => {
    const all = [...architectures.keys()].join(", ");
    const message = `model_type "bert" is not supported; there are ${all}`;
    expect(() => architectureOf("bert")).toThrow(new LoadError(message));
  });

  test.each(["constructor", "__proto__", "toString"])("may be called %s", (name) => {
    expect(() => architectureOf(name)).toThrow(LoadError);
  });

  test.each([undefined, null, 7, {}])("may be %p", (modelType) => {
    const message = "config.json: expected a model_type";
    expect(() => architectureOf(modelType)).toThrow(new LoadError(message));
  });
});

describe("a configuration that is wrong is refused by the key that is", () => {
  type Change = Record<string, unknown>;
  const refused: [string, Change, string][] = [
    ["llama", { hidden_size: "64" }, "config.json: hidden_size: "],
    ["llama", { num_key_value_heads: 3 }, "config.json: 4 heads do not fit 3 KV heads of 16"],
    [
      "llama",
      { rope_scaling: { type: "yarn", factor: "4" } },
      "config.json: rope_scaling.factor: ",
    ],
    ["llama", { vocab_size: undefined }, "config.json: vocab_size: "],
    ["llama", { head_dim: 4 }, "config.json: heads have 4 features: a multiple of 8 is needed"],
    ["llama", { layer_types: ["linear_attention"] }, "config.json: layer_types.0: "],
    ["qwen3_moe", { num_experts: undefined }, "config.json: num_experts: "],
    ["deepseek_v2", { qk_rope_head_dim: 0 }, "config.json: qk_rope_head_dim: "],
    ["deepseek_v3", { n_group: 3 }, "config.json: 16 experts do not fit 3 groups"],
    ["gpt_oss", { num_local_experts: 0 }, "config.json: num_local_experts: "],
    ["gemma3", { text_config: undefined }, "config.json: text_config: "],
    ["phi3", { partial_rotary_factor: 2 }, "config.json: partial_rotary_factor: "],
    [
      "nemotron_h",
      { hybrid_override_pattern: "M?" },
      "config.json: hybrid_override_pattern: expected a letter a layer",
    ],
    ["granitemoehybrid", { layer_types: ["conv"] }, "config.json: layer_types.0: "],
    ["falcon_h1", { ssm_multipliers: [1] }, "config.json: ssm_multipliers: "],
    ["gpt2", { n_embd: undefined }, "config.json: n_embd: "],
    ["gpt2", { n_layer: "2" }, "config.json: n_layer: "],
    ["gpt2", { activation_function: "softmax" }, "config.json: activation_function: there is no "],
    ["gpt2", { scale_attn_weights: false }, "config.json: scale_attn_weights: "],
    ["gptj", { rotary_dim: 32 }, "config.json: rotary_dim: heads have 16 features"],
    ["exaone4", { sliding_window_pattern: "LXG" }, "config.json: sliding_window_pattern: "],
    ["mistral3", { text_config: undefined }, "config.json: text_config: "],
    [
      "mistral3",
      { text_config: { model_type: "mamba" } },
      'config.json: text_config.model_type: there is no "mamba"',
    ],
    ["ministral3", { rope_parameters: { rope_theta: 1 } }, "config.json: rope_parameters."],
    ["openelm", { num_kv_heads: [1, 2] }, "config.json: num_kv_heads: expected 3 numbers"],
    ["openelm", { num_kv_heads: [3, 2, 3] }, "config.json: layer 0: 4 heads do not fit 3 KV heads"],
    ["nemotron-nas", { block_configs: [] }, "config.json: block_configs: expected 4 entries"],
    ["nanbeige", { num_loops: 1000 }, "config.json: num_loops: "],
    ["plamo", { n_shared_head: 3 }, "config.json: n_shared_head: 3 do not divide 4 heads"],
    ["phi", { qk_layernorm: true }, "config.json: qk_layernorm: "],
    ["glm4", { partial_rotary_factor: 0.01 }, "config.json: partial_rotary_factor: "],
    ["spark2_5", { rope_parameters: { full_attention: {} } }, "config.json: rope_parameters."],
    ["afm7", { num_kv_reuse_layers: 4 }, "config.json: num_kv_reuse_layers: no layer has keys"],
    ["afmoe", { score_func: "relu" }, "config.json: score_func: "],
    ["baichuan_m1", { conv_window: 3 }, "config.json: conv_window: "],
    ["bailing_moe", { n_group: 8 }, "config.json: 8 experts do not fit 8 groups"],
    ["bailing_moe_v3", { no_kda_lora: false }, "config.json: no_kda_lora: "],
    ["dbrx", { ffn_config: {} }, "config.json: ffn_config.ffn_hidden_size: "],
    ["deepseek_v2", { qk_rope_head_dim: 2 ** 31 }, "config.json: RoPE would rotate 2147483648 "],
    ["gemma4_text", { num_kv_shared_layers: 2 ** 31 }, "config.json: num_kv_shared_layers: no "],
    ["glm4_moe", { n_routed_experts: 0 }, "config.json: n_routed_experts: "],
    ["jamba", { layers_block_type: ["conv"] }, "config.json: layers_block_type.0: "],
    ["kimi_vl", { text_config: undefined }, "config.json: text_config: "],
    ["laguna", { moe_router_score_func: "softmax" }, "config.json: moe_router_score_func: "],
    ["longcat_flash", { zero_expert_type: "zero" }, "config.json: zero_expert_type: "],
    ["longcat_flash_ngram", { emb_neighbor_num: 1e9 }, "config.json: emb_neighbor_num: "],
    ["mamba", { time_step_rank: 0 }, "config.json: time_step_rank: "],
    ["mimo_v2_flash", { v_head_dim: 64 }, "config.json: 64 features of values, but 32 of keys"],
    ["minimax", { rotary_dim: 64 }, "config.json: RoPE cannot rotate 64 features of heads that"],
    ["mixtral", { num_experts_per_tok: 9 }, "config.json: 9 experts per token, but there are 4"],
    ["plamo2", { mamba_step: 1 }, "config.json: mamba_step: "],
    ["recurrent_gemma", { block_types: [] }, "config.json: block_types: "],
    ["rwkv7", { head_dim: 48 }, "config.json: head_dim: 48 features do not divide 128"],
    ["step3p5", { num_attention_groups: 0 }, "config.json: num_attention_groups: "],
    ["smollm3", { no_rope_layers: [1, 0] }, "config.json: no_rope_layers: expected 5 numbers"],
  ];
  test.each(refused)("%s with %o", (name, change, message) => {
    const error = loadError(name, change);
    expect(error.message).toStartWith(message);
  });
});

describe("a configuration that does not fit the file is refused by the tensor that tells", () => {
  const refused: [string, Record<string, unknown>, string][] = [
    [
      "llama",
      { intermediate_size: 80 },
      "model.layers.0.mlp.gate_proj.weight: expected shape (80,64), found (96,64)",
    ],
    [
      "deepseek_v3-joint",
      { v_head_dim: 24 },
      "model.layers.0.self_attn.kv_b_proj.weight: expected shape (192,32), found (160,32)",
    ],
    [
      "mamba2",
      { state_size: 64 },
      "model.layers.0.mixer.in_proj.weight: expected shape (520,64), found (392,64)",
    ],
    [
      "mamba2",
      { conv_kernel: 5 },
      "model.layers.0.mixer.conv1d.taps: expected shape (256,5), found (256,4,1)",
    ],
    [
      "qwen3_next",
      { linear_num_value_heads: 8 },
      "model.layers.0.linear_attn.in_proj_qkvz.weight: expected shape (640,64), found (384,64)",
    ],
    [
      "qwen3_next",
      { head_dim: 16 },
      "model.layers.1.self_attn.q_proj.weight: expected shape (128,64), found (256,64)",
    ],
    ["llama", { num_hidden_layers: 2 }, "has no place for tensor "],
    ["gpt_neox", { num_hidden_layers: 1 }, "has no place for tensor "],
    [
      "internlm2",
      { num_key_value_heads: 4 },
      "model.layers.0.self_attn.qkv_proj.weight: expected shape (192,64), found (128,64)",
    ],
    [
      "cohere",
      { num_key_value_heads: 1 },
      "model.layers.0.self_attn.k_proj.weight: expected shape (16,64), found (32,64)",
    ],
    ["llama", { num_hidden_layers: 4 }, "tensor model.layers.3.self_attn.q_proj.weight is missing"],
    ["qwen3_moe", { mlp_only_layers: [] }, "model.layers.3.mlp.gate.weight is missing"],
    [
      "qwen3_moe-separate",
      { num_experts: 9 },
      "tensor model.layers.1.mlp.experts.8.gate_proj.weight is missing",
    ],
  ];
  test.each(refused)("%s with %o", (name, change, message) => {
    expect(loadError(name, change).message).toContain(message);
  });
});

test("OLMo keeps queries, keys and values within the limits of its configuration", () => {
  const tiny = tinyCase("olmo-transformers");
  const lastOf = (clip_qkv: number | null) => {
    const path = join(folder, `olmo-${clip_qkv}`);
    mkdirSync(path, { recursive: true });
    writeTinyModel(path, { ...tiny, file_config: { ...tiny.file_config, clip_qkv } });
    const model = loadModel(path, { device: deviceOf("cpu") });
    const kv = new ContiguousKv();
    try {
      using _ = new Scope();
      const step = contiguousStep([{ kv, count: 3 }]);
      return model.forward(array(Int32Array.of(3, 1, 2)), step).numbers();
    } finally {
      kv.free();
      model.free();
    }
  };
  expect(lastOf(100)).toEqual(lastOf(null));
  expect(lastOf(0.1)).not.toEqual(lastOf(null));
});

/** What loading the tiny model says with its configuration changed. */
function loadError(name: string, change: Record<string, unknown>): LoadError {
  const tiny = tinyCase(name);
  writeTinyModel(folder, { ...tiny, config: { ...tiny.config, ...change } });
  try {
    loadModel(folder, { device: deviceOf("cpu") }).free();
  } catch (error) {
    if (error instanceof LoadError) return error;
    throw error;
  }
  throw new Error("it was loaded");
}
