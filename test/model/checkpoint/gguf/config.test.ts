import { describe, expect, test } from "bun:test";
import type { Gguf, GgufTensor, GgufValue } from "../../../../src/files/gguf.ts";
import { LoadError } from "../../../../src/files/load-error.ts";
import { ggufConfig } from "../../../../src/model/checkpoint/gguf/config.ts";

type Values = Record<string, GgufValue>;

/** What every file says, in llama.cpp's keys. */
const common: Values = {
  block_count: 4,
  context_length: 2048,
  embedding_length: 64,
  feed_forward_length: 96,
  "attention.head_count": 4,
  "attention.head_count_kv": 2,
  "attention.layer_norm_rms_epsilon": 1e-5,
  "rope.freq_base": 500_000,
};

function gguf(architecture: string, values: Values, others: Values = {}, names: string[] = []) {
  const entries = Object.entries({ ...common, ...values });
  const metadata = new Map<string, GgufValue>([
    ["general.architecture", architecture],
    ...entries.map(([key, value]) => [`${architecture}.${key}`, value] as const),
    ...Object.entries(others),
  ]);
  const tensor = (name: string, shape: number[]): GgufTensor => {
    return { name, type: "F32", shape, offset: 0, bytes: 4 };
  };
  const tensors = new Map([["token_embd.weight", tensor("token_embd.weight", [80, 64])]]);
  for (const name of ["a", "b", "c", ...names]) tensors.set(name, tensor(name, [2]));
  return { version: 3, alignment: 32, metadata, tensors } satisfies Gguf;
}

const factors: Record<string, number[]> = {
  "rope_freqs.weight": [1, 8],
  "rope_factors_long.weight": [2, 3],
  "rope_factors_short.weight": [1, 1.5],
};

function config(architecture: string, values: Values = {}, others: Values = {}, names?: string[]) {
  const parsed = ggufConfig(
    gguf(architecture, values, others, names),
    ({ name }) => factors[name]!,
  );
  // What is undefined is not there.
  return JSON.parse(JSON.stringify(parsed)) as Record<string, unknown>;
}

describe("ggufConfig", () => {
  test("names every architecture as Hugging Face does", () => {
    const names = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3"];
    const others = ["phi3", "smollm3", "granite", "olmo2"];
    expect([...names, ...others].map((name) => config(name).model_type)).toEqual([
      "llama",
      "qwen2",
      "qwen3",
      "qwen3_moe",
      "gemma2",
      "gemma3_text",
      "phi3",
      "smollm3",
      "granite",
      "olmo2",
    ]);
  });

  test("gives what all architectures have", () => {
    expect(config("llama")).toMatchObject({
      hidden_size: 64,
      num_hidden_layers: 4,
      intermediate_size: 96,
      num_attention_heads: 4,
      num_key_value_heads: 2,
      head_dim: 16,
      rms_norm_eps: 1e-5,
      vocab_size: 80,
      max_position_embeddings: 2048,
      rope_theta: 500_000,
      tie_word_embeddings: true,
    });
    expect(config("llama")).not.toHaveProperty("rope_scaling");
    expect(config("llama", {}, {}, ["output.weight"]).tie_word_embeddings).toBe(false);
    expect(config("qwen3", { "attention.key_length": 32 }).head_dim).toBe(32);
  });

  test("takes the vocabulary from its key, else from the tokens, else from the embedding", () => {
    const tokens = { "tokenizer.ggml.tokens": ["a", "b", "c"] };
    expect(config("llama", { vocab_size: 7 }, tokens).vocab_size).toBe(7);
    expect(config("llama", {}, tokens).vocab_size).toBe(3);
    expect(config("llama").vocab_size).toBe(80);
  });

  test("takes a number for each layer where all are the same", () => {
    const values = { "attention.head_count_kv": Int32Array.of(2, 2, 2, 2) };
    expect(config("llama", values).num_key_value_heads).toBe(2);
    const differ = { "attention.head_count_kv": Int32Array.of(2, 2, 1, 2) };
    expect(() => config("llama", differ)).toThrow(
      /llama.attention.head_count_kv is not one number/,
    );
  });

  test("turns a part of each head where the file says so, of heads of any size", () => {
    expect(config("phi3", { "rope.dimension_count": 12 }).partial_rotary_factor).toBe(0.75);
    const whole = { "rope.dimension_count": 8, "attention.key_length": 8 };
    expect(config("llama", whole)).not.toHaveProperty("partial_rotary_factor");
  });

  test("knows the experts of qwen3moe", () => {
    const values = { expert_count: 8, expert_used_count: 2, expert_feed_forward_length: 32 };
    expect(config("qwen3moe", values)).toMatchObject({
      num_experts: 8,
      num_experts_per_tok: 2,
      moe_intermediate_size: 32,
      norm_topk_prob: true,
      decoder_sparse_step: 1,
      mlp_only_layers: [],
    });
  });

  test("knows the factors of granite", () => {
    const values = {
      embedding_scale: 12,
      residual_scale: 0.25,
      "attention.scale": 0.125,
      logit_scale: 8,
    };
    expect(config("granite", values)).toMatchObject({
      embedding_multiplier: 12,
      residual_multiplier: 0.25,
      attention_multiplier: 0.125,
      logits_scaling: 8,
    });
  });

  test("says of gemma that its norms have their one already", () => {
    expect([config("gemma2").norm_offset, config("gemma3").norm_offset]).toEqual([0, 0]);
  });

  test("gives gemma the scale of its queries, which the file does not have", () => {
    const sizes = { "attention.key_length": 32 };
    const large = (layers: number) => ({ ...sizes, block_count: layers });
    const names = Array.from({ length: 62 }, (_, i) => `${i}`);
    const scalar = (architecture: string, values: Values) =>
      config(architecture, values, {}, names).query_pre_attn_scalar;
    expect([scalar("gemma2", sizes), scalar("gemma3", sizes)]).toEqual([32, 32]);
    // 27B: the width of a head if it were cut out of the hidden state.
    expect([scalar("gemma2", large(46)), scalar("gemma3", large(62))]).toEqual([16, 16]);
  });

  const layersOf = (architecture: string, values: Values, layers: number) => {
    const names = Array.from({ length: layers }, (_, i) => `${i}`);
    const { layer_types } = config(architecture, { ...values, block_count: layers }, {}, names);
    return (layer_types as string[]).map((type) => type[0]).join("");
  };

  test("knows which layers have a window", () => {
    const window = { "attention.sliding_window": 512 };
    expect(layersOf("gemma2", {}, 4)).toBe("sfsf");
    expect(config("gemma2").sliding_window).toBe(4096);
    expect(layersOf("gemma3", window, 8)).toBe("sssssfss");
    expect(layersOf("gemma3", {}, 8)).toBe("ffffffff");
    const pattern = "attention.sliding_window_pattern";
    expect(layersOf("gemma3", { ...window, [pattern]: 3 }, 6)).toBe("ssfssf");
    expect(layersOf("gemma3", { ...window, [pattern]: [false, true, true] }, 3)).toBe("fss");
    expect(config("gemma3", window)).toMatchObject({
      sliding_window: 512,
      rope_local_base_freq: 10_000,
    });
    expect(config("llama", window)).not.toHaveProperty("layer_types");
  });

  test("takes a window of zero for none", () => {
    expect(config("phi3", { "attention.sliding_window": 0 })).not.toHaveProperty("sliding_window");
  });

  test("tells Olmo 3 from Olmo 2 by its window", () => {
    expect(config("olmo2").model_type).toBe("olmo2");
    expect(config("olmo2", { "attention.sliding_window": 4096 }).model_type).toBe("olmo3");
  });
});

describe("ggufConfig scales rotary positions", () => {
  const scaling = (values: Values, names: string[] = []) =>
    config("llama", values, {}, names).rope_scaling;

  test("by a factor", () => {
    const factor = { "rope.scaling.factor": 4 };
    expect(scaling(factor)).toEqual({ type: "linear", factor: 4 });
    expect(scaling({ "rope.scale_linear": 2 })).toEqual({ type: "linear", factor: 2 });
    expect(scaling({ ...factor, "rope.scaling.type": "none" })).toBeUndefined();
    expect(scaling({ "rope.scaling.factor": 1, "rope.scaling.type": "linear" })).toBeUndefined();
  });

  test("by yarn", () => {
    const values = {
      "rope.scaling.type": "yarn",
      "rope.scaling.factor": 4,
      "rope.scaling.original_context_length": 512,
      "rope.scaling.yarn_beta_fast": 16,
    };
    const yarn = { type: "yarn", factor: 4, original_max_position_embeddings: 512 };
    expect(scaling(values)).toEqual({ ...yarn, beta_fast: 16 });
    // What files leave out: gpt-oss's ramp begins and ends between features.
    expect(config("gpt-oss", values).rope_scaling).toMatchObject({ truncate: false });
    const gained = { ...values, "rope.scaling.yarn_log_multiplier": 0.1 };
    const latent = { "attention.kv_lora_rank": 512, "rope.dimension_count": 16 };
    const sizes = { "attention.key_length": 48, "attention.value_length": 32 };
    expect(config("deepseek2", { ...gained, ...latent, ...sizes }).rope_scaling).toMatchObject({
      mscale: 1,
      mscale_all_dim: 1,
    });
    const whole = { ...values, "rope.scaling.yarn_log_multiplier": 1 };
    expect(config("mistral3", whole).rope_scaling).toMatchObject({ mscale: 1, mscale_all_dim: 1 });
  });

  test("by a factor a frequency, as llama3 has become, without touching magnitudes", () => {
    expect(scaling({}, ["rope_freqs.weight"])).toEqual({
      type: "longrope",
      long_factor: [1, 8],
      short_factor: [1, 8],
      original_max_position_embeddings: 2048,
    });
  });

  test("by phi3's long factors", () => {
    const names = ["rope_factors_long.weight", "rope_factors_short.weight"];
    const values = { "rope.scaling.original_context_length": 512 };
    expect(config("phi3", values, {}, names)).toMatchObject({
      original_max_position_embeddings: 512,
      rope_scaling: {
        ...{ type: "longrope", original_max_position_embeddings: 512 },
        ...{ long_factor: [2, 3], short_factor: [1, 1.5] },
      },
    });
    expect(() => config("phi3", {}, {}, names)).toThrow(
      /has no phi3.rope.scaling.original_context/,
    );
  });
});

describe("ggufConfig refuses", () => {
  const cases: [string, string, Values, string][] = [
    ["an unknown architecture", "t5", {}, 'GGUF architecture "t5" is not supported; there'],
    ["a property of all objects", "constructor", {}, 'architecture "constructor" is not supported'],
    ["an architecture of two lines", "a\nb", {}, 'architecture "a\\nb" is not supported'],
    ["text for a number", "llama", { block_count: "many" }, "llama.block_count is not one number"],
    ["more layers than tensors", "gemma2", { block_count: 4e9 }, "4000000000, with 4 tensors"],
    ["no layers", "llama", { block_count: 0 }, "llama.block_count is 0, with 4 tensors"],
    [
      "an unknown scaling",
      "llama",
      { "rope.scaling.type": "dyn\namic" },
      'llama.rope.scaling.type is "dyn\\namic"',
    ],
  ];
  test.each(cases)("%s", (_, architecture, values, message) => {
    const read = () => config(architecture, values);
    expect(read).toThrow(LoadError);
    expect(read).toThrow(message);
  });

  test("a file without the architecture, or without a number that is needed", () => {
    const none = { ...gguf("llama", {}), metadata: new Map() };
    expect(() => ggufConfig(none, () => [])).toThrow(/architecture undefined is not supported/);
    const { metadata, ...rest } = gguf("llama", {});
    metadata.delete("llama.embedding_length");
    expect(() => ggufConfig({ ...rest, metadata }, () => [])).toThrow(
      "the GGUF file has no llama.embedding_length",
    );
  });

  test("rotary positions scaled twice", () => {
    const read = () => config("llama", { "rope.scaling.factor": 4 }, {}, ["rope_freqs.weight"]);
    expect(read).toThrow(/scales rotary positions twice/);
  });
});
