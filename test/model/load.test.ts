import { describe, expect, test } from "bun:test";
import { existsSync, readdirSync, truncateSync, unlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { blockOf, type GgufType } from "../../src/files/gguf.ts";
import { LoadError } from "../../src/files/load-error.ts";
import { array, liveArrays } from "../../src/mlx/array.ts";
import { panelRows } from "../../src/mlx/cpu.ts";
import { activeMemory } from "../../src/mlx/memory.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { type LoadedModel, type LoadOptions, loadModel } from "../../src/model/load.ts";
import { ContiguousKv, contiguousStep } from "../support/contiguous-kv.ts";
import { deviceOf } from "../support/devices.ts";
import {
  blockNames,
  type GgufFileTensor,
  writeGguf,
  writeGgufParts,
} from "../support/gguf-file.ts";
import { expectLittle } from "../support/little-memory.ts";
import { useMlx } from "../support/mlx.ts";
import {
  bf16,
  type FileTensors,
  f16,
  f32,
  llamaShapes,
  randomNumbers,
  tinyConfig,
  tinyTensors,
  writeFolder,
} from "../support/safetensors-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

useMlx();
const root = temporaryFolder();

let folders = 0;
const newFolder = () => join(root, String(folders++));

const prompt = [3, 1, 4, 15, 9, 26, 5, 35, 8, 9, 7, 9];

/** For every token of the prompt. */
function logits(path: string, options: Partial<LoadOptions> = {}): number[] {
  const model = loadModel(path, { device: deviceOf("cpu"), ...options });
  const found = logitsOf(model);
  model.free();
  return found;
}

function logitsOf(model: LoadedModel): number[] {
  using _ = new Scope();
  const kv = new ContiguousKv();
  const step = contiguousStep([{ kv, count: prompt.length }]);
  const found = model.logits(model.forward(array(Int32Array.from(prompt)), step)).numbers();
  kv.free();
  return found;
}

const load = (path: string) => loadModel(path, { device: deviceOf("cpu") });

/** The largest difference, over the largest logit. */
function distance(found: readonly number[], expected: readonly number[]): number {
  expect(found.length).toBe(expected.length);
  const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  expect(largest).toBeGreaterThan(0.01);
  const differences = found.map((value, i) => Math.abs(value - expected[i]!));
  return Math.max(...differences) / largest;
}

describe("loadModel of a folder", () => {
  test("gives the same from one file and from shards", () => {
    const single = writeFolder(newFolder(), tinyConfig, tinyTensors());
    const sharded = writeFolder(newFolder(), tinyConfig, tinyTensors(), 3);
    expect(logits(sharded)).toEqual(logits(single));
  });

  test.each([
    ["F16", f16, (x: Float32Array) => new Float32Array(new Float16Array(x))],
    [
      "BF16",
      bf16,
      (x: Float32Array) => {
        const bits = bf16([x.length], x).data as Uint16Array;
        return new Float32Array(Uint32Array.from(bits, (half) => half << 16).buffer);
      },
    ],
  ] as const)("computes with the numbers of %s in float32", (_, store, rounded) => {
    const stored = writeFolder(newFolder(), tinyConfig, tinyTensors(tinyConfig, store));
    const exact = tinyTensors(tinyConfig, (shape, values) => f32(shape, rounded(values)));
    const model = loadModel(stored, { device: deviceOf("cpu") });
    expect(model).toMatchObject({ dtype: "float32", shape: { vocabulary: 80 } });
    expect(model.states.kvs).toHaveLength(2);
    const size = [...llamaShapes(tinyConfig).values()].flatMap((shape) =>
      shape.reduce((a, b) => a * b),
    );
    expect(model.weightBytes).toBe(4 * size.reduce((a, b) => a + b));
    expect(logitsOf(model)).toEqual(logits(writeFolder(newFolder(), tinyConfig, exact)));
    model.free();
  });

  test("uses the embedding for the output where the two are one", () => {
    const tied = { ...tinyConfig, tie_word_embeddings: true };
    const tensors = tinyTensors(tied);
    const twice = { ...tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]! };
    const expected = logits(writeFolder(newFolder(), tinyConfig, twice));
    const { tie_word_embeddings: _, ...unsaid } = tied;
    expect(logits(writeFolder(newFolder(), tied, tensors))).toEqual(expected);
    expect(logits(writeFolder(newFolder(), tied, twice))).toEqual(expected);
    expect(logits(writeFolder(newFolder(), unsaid, tensors))).toEqual(expected);
  });

  test("gives back all memory", () => {
    const path = writeFolder(newFolder(), tinyConfig, tinyTensors());
    const before = [liveArrays(), activeMemory()];
    const model = load(path);
    logitsOf(model);
    expect(activeMemory()).toBeGreaterThan(before[1]! + model.weightBytes - 1);
    model.free();
    expect([liveArrays(), activeMemory()]).toEqual(before);
  });
});

describe("loadModel of a GGUF file", () => {
  const [D, H, K, headDim, F, V, E, M] = [64, 4, 2, 16, 96, 80, 4, 32];
  const shapes: Record<string, number[]> = {
    attn_norm: [D],
    attn_q: [H * headDim, D],
    attn_k: [K * headDim, D],
    attn_v: [K * headDim, D],
    attn_qkv: [(H + 2 * K) * headDim, D],
    attn_output: [D, H * headDim],
    attn_q_norm: [headDim],
    attn_k_norm: [headDim],
    ffn_norm: [D],
    ffn_gate: [F, D],
    ffn_up: [F, D],
    ffn_down: [D, F],
    ffn_gate_inp: [E, D],
    ffn_gate_exps: [E, M, D],
    ffn_up_exps: [E, M, D],
    ffn_down_exps: [E, D, M],
    post_attention_norm: [D],
    post_ffw_norm: [D],
  };

  /** An architecture where it differs from Llama, in both worlds. */
  type Case = {
    /** GGUF's name, where it is another. */
    name?: string;
    layers?: number;
    biases?: string[];
    shapes?: Record<string, number[]>;
    config?: object;
    metadata?: Record<string, number | string>;
    freqs?: Record<string, number[]>;
  };

  const long = [1, 1, 1.5, 2, 3, 4, 6, 8];
  const gemma = { hidden_act: "gelu_pytorch_tanh", head_dim: headDim, tie_word_embeddings: true };
  const cases: Record<string, Case> = {
    llama: { biases: ["attn_q", "attn_k", "attn_v", "attn_output"] },
    qwen2: { biases: ["attn_q", "attn_k", "attn_v"] },
    qwen3: { config: { head_dim: headDim }, metadata: { "attention.key_length": headDim } },
    qwen3_moe: {
      name: "qwen3moe",
      config: {
        head_dim: headDim,
        num_experts: E,
        num_experts_per_tok: 2,
        moe_intermediate_size: M,
        norm_topk_prob: true,
        decoder_sparse_step: 1,
        mlp_only_layers: [],
      },
      metadata: {
        "attention.key_length": headDim,
        expert_count: E,
        expert_used_count: 2,
        expert_feed_forward_length: M,
      },
    },
    gemma2: {
      config: {
        ...gemma,
        query_pre_attn_scalar: headDim,
        sliding_window: 4,
        attn_logit_softcapping: 20,
        final_logit_softcapping: 10,
      },
      metadata: {
        "attention.key_length": headDim,
        "attention.sliding_window": 4,
        attn_logit_softcapping: 20,
        final_logit_softcapping: 10,
      },
    },
    gemma3_text: {
      name: "gemma3",
      layers: 6,
      config: {
        ...gemma,
        query_pre_attn_scalar: headDim,
        sliding_window: 4,
        sliding_window_pattern: 6,
        rope_local_base_freq: 10_000,
      },
      metadata: { "attention.key_length": headDim, "attention.sliding_window": 4 },
    },
    phi3: {
      shapes: { ffn_up: [2 * F, D] },
      config: {
        original_max_position_embeddings: 32,
        rope_scaling: { type: "longrope", long_factor: long, short_factor: long },
      },
      metadata: {
        "rope.dimension_count": headDim,
        "rope.scaling.original_context_length": 32,
        "attention.sliding_window": 0,
      },
      freqs: { rope_factors_long: long, rope_factors_short: long },
    },
    smollm3: { layers: 4, config: { no_rope_layers: [1, 1, 1, 0] } },
    granite: {
      config: {
        ...{ embedding_multiplier: 12, residual_multiplier: 0.25 },
        ...{ attention_multiplier: 0.125, logits_scaling: 8 },
      },
      metadata: {
        embedding_scale: 12,
        residual_scale: 0.25,
        "attention.scale": 0.125,
        logit_scale: 8,
      },
    },
    olmo2: { shapes: { attn_q_norm: [D], attn_k_norm: [K * headDim] } },
  };

  const rows = (values: Float32Array, columns: number) =>
    Array.from({ length: values.length / columns }, (_, row) =>
      values.subarray(row * columns, (row + 1) * columns),
    );

  /** As llama.cpp's converter for the llama family does: (heads, 2, D / 2) -> (heads, D / 2, 2). */
  function paired(values: Float32Array, columns: number, heads: number): Float32Array {
    const all = rows(values, columns);
    const half = all.length / heads / 2;
    const order = Array.from({ length: all.length }, (_, row) => {
      const [head, within] = [Math.floor(row / (2 * half)), row % (2 * half)];
      return (2 * head + (within % 2)) * half + Math.floor(within / 2);
    });
    return Float32Array.from(order.flatMap((row) => Array.from(all[row]!)));
  }

  /** The same model as a folder of Hugging Face's and as a GGUF file. */
  function bothOf(modelType: string) {
    const own = cases[modelType]!;
    const { name = modelType, layers = 2, biases = [] } = own;
    const tied = modelType.startsWith("gemma");
    const config = {
      ...tinyConfig,
      model_type: modelType,
      num_hidden_layers: layers,
      rope_theta: 10_000,
      tie_word_embeddings: tied,
      ...own.config,
    };
    const tensors: FileTensors = {};
    const stored: Record<string, GgufFileTensor> = {};
    let seed = 1;
    const put = (theirs: string, ours: string, shape: number[]) => {
      const size = shape.reduce((a, b) => a * b);
      const values = randomNumbers(size, seed++, 0.3);
      if (shape.length === 3) {
        for (let i = 0; i < E; i++) {
          const expert = values.subarray((i * size) / E, ((i + 1) * size) / E);
          tensors[ours.replace("switch_mlp", `experts.${i}`)] = f32(shape.slice(1), expert);
        }
      } else tensors[ours] = f32(shape, values);
      const [, part] = /attn_([qk])\.(?:weight|bias)$/.exec(theirs) ?? [];
      const isPaired = part && ["llama", "granite", "smollm3"].includes(modelType);
      const heads = part === "q" ? H : K;
      let data = isPaired ? paired(values, shape[1] ?? 1, heads) : values;
      if (tied && theirs.endsWith("norm.weight")) data = data.map((value) => value + 1);
      stored[theirs] = { type: "F32", shape, data };
    };
    put("token_embd.weight", "model.embed_tokens.weight", [V, D]);
    put("output_norm.weight", "model.norm.weight", [D]);
    if (!tied) put("output.weight", "lm_head.weight", [V, D]);
    for (let layer = 0; layer < layers; layer++) {
      for (const [part, ours] of Object.entries(blockNames[modelType]!)) {
        const shape = own.shapes?.[part] ?? shapes[part]!;
        const kinds = biases.includes(part) ? ["weight", "bias"] : ["weight"];
        for (const kind of kinds) {
          const inBlock = kind === "bias" ? shape.slice(0, 1) : shape;
          put(`blk.${layer}.${part}.${kind}`, `model.layers.${layer}.${ours}.${kind}`, inBlock);
        }
      }
    }
    for (const [key, factors] of Object.entries(own.freqs ?? {})) {
      const data = Float32Array.from(factors);
      stored[`${key}.weight`] = { type: "F32", shape: [data.length], data };
    }
    const values = {
      block_count: layers,
      context_length: config.max_position_embeddings,
      embedding_length: D,
      feed_forward_length: F,
      "attention.head_count": H,
      "attention.head_count_kv": K,
      "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
      "rope.freq_base": 10_000,
      ...own.metadata,
    };
    const metadata: Record<string, number | string> = { "general.architecture": name };
    for (const [key, value] of Object.entries(values)) metadata[`${name}.${key}`] = value;
    return { config, tensors, metadata, stored };
  }

  test.each(Object.keys(cases))("computes what the folder computes, of %s", (modelType) => {
    const { config, tensors, metadata, stored } = bothOf(modelType);
    const gguf = writeGguf(`${newFolder()}.gguf`, { metadata, tensors: stored });
    // The file has a few numbers in float32 that the configuration has in full.
    expect(distance(logits(gguf), logits(writeFolder(newFolder(), config, tensors)))).toBeLessThan(
      1e-5,
    );
  });

  test("gives the same from one file and from parts", () => {
    const { metadata, stored } = bothOf("phi3");
    const file = { metadata, tensors: stored };
    const [first, second] = writeGgufParts(newFolder(), file, 3);
    expect(logits(first)).toEqual(logits(writeGguf(`${newFolder()}.gguf`, file)));
    expect(() => logits(second!)).toThrow(
      /one of 3 parts: name the first, "\d+-00001-of-00003.gguf"$/,
    );
  });

  test("scales frequencies by the factors that llama3's scaling comes to", () => {
    const scaling = { factor: 8, low_freq_factor: 1, high_freq_factor: 4 };
    const context = 64;
    const { config, tensors, metadata, stored } = bothOf("llama");
    const llama3 = {
      ...config,
      rope_scaling: { ...scaling, rope_type: "llama3", original_max_position_embeddings: context },
    };
    // As llama.cpp's converter has it.
    const factors = Float32Array.from({ length: headDim / 2 }, (_, i) => {
      const wavelength = 2 * Math.PI * 10_000 ** ((2 * i) / headDim);
      if (wavelength < context / 4) return 1;
      if (wavelength > context) return 8;
      const smooth = (context / wavelength - 1) / 3;
      return 1 / ((1 - smooth) / 8 + smooth);
    });
    const freqs: GgufFileTensor = { type: "F32", shape: [factors.length], data: factors };
    const file = { metadata, tensors: { ...stored, "rope_freqs.weight": freqs } };
    const found = logits(writeGguf(`${newFolder()}.gguf`, file));
    const expected = logits(writeFolder(newFolder(), llama3, tensors));
    expect(distance(found, expected)).toBeLessThan(1e-5);
    expect(distance(logits(writeFolder(newFolder(), config, tensors)), expected)).toBeGreaterThan(
      1e-3,
    );
  });

  test("refuses a tensor that is not the architecture's", () => {
    const { metadata, stored } = bothOf("llama");
    const extra = { type: "F32", shape: [4], data: new Float32Array(4) } as const;
    const file = { metadata, tensors: { ...stored, "blk.0.attn_sinks.weight": extra } };
    const path = writeGguf(`${newFolder()}.gguf`, file);
    expect(() => logits(path)).toThrow(/no place for tensor "blk.0.attn_sinks.weight"$/);
  });

  /** Blocks with scales of about a fiftieth. */
  function blocks(type: GgufType, shape: number[], seed: number): GgufFileTensor {
    const size = shape.reduce((a, b) => a * b);
    if (type === "F32") return { type, shape, data: randomNumbers(size, seed, 0.3) };
    if (type === "F16")
      return { type, shape, data: new Float16Array(randomNumbers(size, seed, 0.3)) };
    const { items, bytes } = blockOf(type);
    const data = Uint8Array.from(randomNumbers((size / items) * bytes, seed), (x) => x * 128 + 128);
    for (let at = 0; at < data.length; at += bytes) {
      data.set([0x00, 0x25], at); // 0.02 as f16
      if (type === "Q4_1") data.set([0x00, 0xb1], at + 2); // -0.16
      if (type === "Q8_0") data.set([0x00, 0x18], at); // 0.002
      if (type === "MXFP4") data[at] = 122; // 2 ** -5
    }
    return { type, shape, data };
  }

  test("computes with matrices left packed, or in 16 bits, about what float32 does", () => {
    const { metadata, stored } = bothOf("llama");
    const types: GgufType[] = ["Q4_0", "Q4_1", "Q8_0", "F16", "MXFP4"];
    const tensors = Object.fromEntries(
      Object.entries(stored).map(([name, { shape }], i) => {
        const type = shape.length === 2 ? types[i % types.length]! : "F32";
        return [name, blocks(type, [...shape], i + 1)];
      }),
    );
    const path = writeGguf(`${newFolder()}.gguf`, { metadata, tensors });
    const expected = logits(path);
    for (const backend of ["metal", "cuda"] as const) {
      expect(
        distance(logits(path, { device: deviceOf(backend), dtype: "float32" }), expected),
      ).toBeLessThan(1e-5);
    }
    // On CUDA those in 16 bits are kernels, which only a GPU runs.
    const model = loadModel(path, { device: deviceOf("metal") });
    expect(model.dtype).toBe("float16");
    expect(distance(logitsOf(model), expected)).toBeLessThan(0.02);
    model.free();
  });
});

describe("loadModel refuses", () => {
  const openFiles = () =>
    existsSync("/proc/self/fd") ? readdirSync("/proc/self/fd").length : undefined;

  /** One line, and nothing is left behind. */
  function expectRefusal(load: () => unknown, message: string | RegExp) {
    const state = () => [liveArrays(), activeMemory(), openFiles()];
    const before = state();
    let error: unknown;
    try {
      load();
    } catch (thrown) {
      error = thrown;
    }
    expect(error).toBeInstanceOf(LoadError);
    const found = (error as LoadError).message;
    expect(found).toMatch(message);
    expect(found).not.toMatch(/[\n\r]/);
    expect(state()).toEqual(before);
  }

  const tensors = tinyTensors();
  const without = (name: string) =>
    Object.fromEntries(Object.entries(tensors).filter(([other]) => other !== name));
  const q = "model.layers.1.self_attn.q_proj";
  const words = (shape: number[]) =>
    ({ dtype: "U32", shape, data: new Uint32Array(shape.reduce((a, b) => a * b)) }) as const;
  const packed = {
    ...tensors,
    [`${q}.weight`]: words([64, 8]),
    [`${q}.scales`]: f16([64, 3], new Float32Array(192)),
    [`${q}.biases`]: f16([64, 3], new Float32Array(192)),
  };

  const disagreements: [string, object, FileTensors, string][] = [
    [
      "another hidden size",
      { hidden_size: 32 },
      tensors,
      "model.embed_tokens.weight: expected shape (80,32), found (80,64)",
    ],
    [
      "another vocabulary",
      { vocab_size: 81 },
      tensors,
      "model.embed_tokens.weight: expected shape (81,64), found (80,64)",
    ],
    [
      "other heads",
      { num_key_value_heads: 4 },
      tensors,
      "model.layers.0.self_attn.k_proj.weight: expected shape (64,64), found (32,64)",
    ],
    ["a missing tensor", {}, without(`${q}.weight`), `tensor ${q}.weight is missing`],
    ["a missing head", {}, without("lm_head.weight"), "tensor lm_head.weight is missing"],
    [
      "a layer more than there is",
      { num_hidden_layers: 3 },
      tensors,
      "tensor model.layers.2.self_attn.q_proj.weight is missing",
    ],
    [
      "a layer less than there is",
      { num_hidden_layers: 1 },
      tensors,
      'the configuration has no place for tensor "model.layers.1.',
    ],
    [
      "a bias of another size",
      {},
      { ...tensors, [`${q}.bias`]: f32([32], new Float32Array(32)) },
      `${q}.bias: expected shape (64), found (32)`,
    ],
    [
      "packed shapes that do not fit",
      {},
      packed,
      `${q}.weight: expected shape (64,64), found (64,8) of U32 with scales (64,3) of F16`,
    ],
    [
      "a norm of integers",
      {},
      { ...tensors, "model.norm.weight": words([64]) },
      "model.norm.weight: weights of type U32 are not supported",
    ],
  ];
  test.each(disagreements)("%s", (_, config, files, message) => {
    const path = writeFolder(newFolder(), { ...tinyConfig, ...config }, files);
    for (const backend of ["cpu", "metal"] as const) {
      expectRefusal(() => loadModel(path, { device: deviceOf(backend) }), message);
    }
  });

  const configs: [string, string, RegExp][] = [
    [
      "a config.json that is cut off",
      '{"model_type":',
      /config.json does not contain a JSON object$/,
    ],
    ["a list for a config.json", "[]", /config.json does not contain a JSON object$/],
    [
      "a text for a number",
      JSON.stringify({ ...tinyConfig, hidden_size: "64" }),
      /^config.json: hidden_size: .*expected number/,
    ],
    [
      "a number for a flag",
      JSON.stringify({ ...tinyConfig, tie_word_embeddings: 1 }),
      /^config.json: tie_word_embeddings: .*expected boolean/,
    ],
    [
      "a config.json without a size",
      JSON.stringify({ ...tinyConfig, vocab_size: undefined }),
      /^config.json: vocab_size: /,
    ],
    [
      "heads that do not divide the hidden state",
      JSON.stringify({ ...tinyConfig, num_attention_heads: 3 }),
      /^config.json: 3 heads do not fit/,
    ],
    [
      "an unknown model_type",
      JSON.stringify({ ...tinyConfig, model_type: "lla\nma" }),
      /"lla\\nma" is not supported/,
    ],
    [
      "a model_type of JavaScript's own",
      JSON.stringify({ ...tinyConfig, model_type: "constructor" }),
      /"constructor" is not supported/,
    ],
  ];
  test.each(configs)("%s", (_, text, message) => {
    const path = writeFolder(newFolder(), {}, tensors);
    writeFileSync(join(path, "config.json"), text);
    expectRefusal(() => load(path), message);
  });

  const indexFile = "model.safetensors.index.json";
  const damages: [string, (path: string) => void, RegExp][] = [
    ["a missing config.json", (path) => unlinkSync(join(path, "config.json")), /is missing$/],
    [
      "a shard that is cut off",
      (path) => truncateSync(join(path, "model-1.safetensors"), 20_000),
      /model-1.safetensors: expected a file of \d+ bytes, found 20000$/,
    ],
    [
      "a header that is none",
      (path) => writeFileSync(join(path, "model-1.safetensors"), "\x02\0\0\0\0\0\0\0]["),
      /model-1.safetensors: expected its header to be a JSON object$/,
    ],
    [
      "a missing shard",
      (path) => unlinkSync(join(path, "model-1.safetensors")),
      /index.json: it names "model-1.safetensors", which does not exist$/,
    ],
    [
      "../ in the index",
      (path) =>
        writeFileSync(join(path, indexFile), '{"weight_map":{"a":"../x/model-1.safetensors"}}'),
      /expected a .safetensors file name for "a", found "..\/x\/model-1.safetensors"$/,
    ],
  ];
  test.each(damages)("%s", (_, damage, message) => {
    const path = writeFolder(newFolder(), tinyConfig, tensors, 2);
    damage(path);
    expectRefusal(() => load(path), message);
  });

  test("a file that shrinks while it is read", () => {
    const path = writeFolder(newFolder(), tinyConfig, tensors);
    const onProgress = () => truncateSync(join(path, "model.safetensors"), 30_000);
    const load = () => loadModel(path, { device: deviceOf("cpu"), onProgress });
    expectRefusal(load, /model.safetensors: expected \d+ bytes or more, found \d+$/);
  });

  test("GGUF files of unknown architectures, and what is none", () => {
    const path = join(root, "other.gguf");
    const embedding = { type: "F32", shape: [2], data: new Float32Array(2) } as const;
    writeGguf(path, { metadata: { "general.architecture": "t5\n" }, tensors: { a: embedding } });
    expectRefusal(() => load(path), /^GGUF architecture "t5\\n" is not/);
    truncateSync(path, 60);
    expectRefusal(() => load(path), /the download is incomplete/);
    writeFileSync(path, "something else");
    expectRefusal(() => load(path), /other.gguf: not a GGUF file$/);
    const missing = join(root, "missing.gguf");
    expectRefusal(() => load(missing), /cannot be read \(ENOENT\)$/);
  });
});

describe("loading takes little more memory than the weights", () => {
  test("from the default GGUF file", async () => {
    const { weightBytes } = await expectLittle(defaultModelPath());
    expect(weightBytes).toBe(panelRows() > 0 ? 98_346_240 : 115_156_224);
  }, 60_000);

  test("from a folder with 4-bit matrices, most of it the embedding", async () => {
    const config = {
      ...tinyConfig,
      hidden_size: 512,
      intermediate_size: 2048,
      num_hidden_layers: 8,
      num_attention_heads: 8,
      num_key_value_heads: 8,
      vocab_size: 196_608,
      tie_word_embeddings: true,
    };
    const tensors: FileTensors = {};
    for (const [name, shape] of llamaShapes(config)) {
      const [rows, columns] = shape as [number, number];
      if (shape.length === 1) {
        tensors[name] = f16(shape, randomNumbers(rows));
        continue;
      }
      const data = new Uint32Array((rows * columns) / 8).fill(0x89abcdef);
      tensors[name] = { dtype: "U32", shape: [rows, columns / 8], data };
      const stem = name.replace(/\.weight$/, "");
      const groups = new Float32Array((rows * columns) / 64).fill(0.01);
      tensors[`${stem}.scales`] = f16([rows, columns / 64], groups);
      tensors[`${stem}.biases`] = f16([rows, columns / 64], groups);
    }
    const { weightBytes } = await expectLittle(writeFolder(newFolder(), config, tensors));
    const matrices = 196_608 * 512 + 8 * (4 * 512 * 512 + 3 * 512 * 2048);
    // Half a byte a weight, with a scale and a bias for each 64, in panels of as many bits as in the file.
    const each = panelRows() > 0 ? 2 : 4;
    expect(weightBytes).toBe(matrices * (0.5 + (2 * each) / 64) + 4 * 17 * 512);
  }, 60_000);
});
