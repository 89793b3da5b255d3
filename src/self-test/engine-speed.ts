// Measures the engine's speed with a small model of random weights.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { EngineClient } from "../engine/client.ts";
import { toBfloat16 } from "../mlx/dtype.ts";
import { noise } from "./check.ts";
import { answersOf } from "./engine-checks.ts";
import type { Figure } from "./lines.ts";
import { bytesOf, type FileTensor, writeSafetensors } from "./tiny-weights.ts";

const config = {
  model_type: "qwen3",
  hidden_size: 512,
  num_hidden_layers: 4,
  intermediate_size: 1536,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  head_dim: 64,
  rms_norm_eps: 1e-6,
  vocab_size: 8192,
  max_position_embeddings: 2048,
  rope_theta: 1e6,
  tie_word_embeddings: true,
  torch_dtype: "bfloat16",
};

const MODEL = "speed";
const [ROWS, PROMPT, ANSWER] = [16, 96, 32];

/** Measures the speed of prefill, and of decoding with one request and with many. */
export async function measureEngine(engine: EngineClient): Promise<Figure[]> {
  const folder = mkdtempSync(join(tmpdir(), "mlx-serve-self-test-"));
  try {
    writeModel(folder);
    await engine.load(MODEL, folder, { maxBatch: ROWS, blocks: 512, warmUp: true });
    // Compiles kernels before anything is measured.
    for (const rows of [1, ROWS]) await run(engine, "warm-up", rows, 4);
    const one = await run(engine, "one", 1, ANSWER);
    const many = await run(engine, "many", ROWS, ANSWER);
    await engine.unload(MODEL);
    return [
      { name: "the engine, prompts", value: many.promptRate, unit: "tokens/s" },
      { name: "the engine, 1 request", value: one.rate, unit: "tokens/s" },
      {
        name: `the engine, ${ROWS} requests`,
        value: many.rate,
        unit: "tokens/s",
        part: { of: "linear scaling", value: many.rate / (ROWS * one.rate), least: 0.1 },
      },
    ];
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Measures tokens per second: prompt tokens until every request has its first token, then answer tokens. */
async function run(engine: EngineClient, name: string, rows: number, maxTokens: number) {
  const start = performance.now();
  const firsts: number[] = [];
  const answers = Array.from({ length: rows }, async (_, i) => {
    let isFirst = true;
    const values = noise(`${name} ${i}`, PROMPT);
    const prompt = Uint32Array.from(values, (x) => Math.floor(((x + 1) / 2) * config.vocab_size));
    const sampling = { temperature: 0 };
    await answersOf(engine, MODEL, { prompt, maxTokens, sampling }, () => {
      if (isFirst) firsts.push(performance.now());
      isFirst = false;
    });
  });
  await Promise.all(answers);
  const read = Math.max(...firsts);
  return {
    promptRate: (1000 * rows * PROMPT) / (read - start),
    rate: (1000 * rows * (maxTokens - 1)) / (performance.now() - read),
  };
}

function writeModel(folder: string): void {
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  const { hidden_size: hidden, intermediate_size: inner, head_dim: size } = config;
  const [queries, keys] = [config.num_attention_heads * size, config.num_key_value_heads * size];
  const shapes: Record<string, number[]> = {
    "model.embed_tokens": [config.vocab_size, hidden],
    "model.norm": [hidden],
  };
  for (let layer = 0; layer < config.num_hidden_layers; layer++) {
    Object.assign(
      shapes,
      Object.fromEntries(
        Object.entries({
          input_layernorm: [hidden],
          post_attention_layernorm: [hidden],
          "self_attn.q_norm": [size],
          "self_attn.k_norm": [size],
          "self_attn.q_proj": [queries, hidden],
          "self_attn.k_proj": [keys, hidden],
          "self_attn.v_proj": [keys, hidden],
          "self_attn.o_proj": [hidden, queries],
          "mlp.gate_proj": [inner, hidden],
          "mlp.up_proj": [inner, hidden],
          "mlp.down_proj": [hidden, inner],
        }).map(([part, shape]) => [`model.layers.${layer}.${part}`, shape]),
      ),
    );
  }
  // All tensors share the same numbers, because values do not affect the speed.
  const most = Math.max(...Object.values(shapes).map(count));
  const values = noise("weights", most).map((x) => x / 20);
  const halves = new Uint16Array(most);
  toBfloat16(values, halves);
  const tensors = new Map<string, FileTensor>();
  for (const [name, shape] of Object.entries(shapes)) {
    const bytes = bytesOf(halves.subarray(0, count(shape)));
    tensors.set(`${name}.weight`, { dtype: "BF16", shape, bytes });
  }
  writeSafetensors(join(folder, "model.safetensors"), tensors);
}

const count = (shape: readonly number[]) => shape.reduce((a, b) => a * b);
