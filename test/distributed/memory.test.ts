// What ranks hold of a model, by MLX's own count: each its share of the weights and of the KV cache, as was planned. Their
// parts are loaded one after the other: nothing is computed, so no rank waits for another.
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { defaultEngineOptions, type Parallel } from "../../src/engine/protocol.ts";
import { plannedGroup } from "../../src/mlx/distributed.ts";
import { activeMemory } from "../../src/mlx/memory.ts";
import { type LoadOptions, loadModel } from "../../src/model/load.ts";
import { evenly } from "../../src/model/stages.ts";
import { StateStore } from "../../src/model/state-store.ts";
import { bytesOf, type FileTensor, writeSafetensors } from "../../src/self-test/tiny-weights.ts";
import { needsOf } from "../../src/worker/plan.ts";
import { deviceOf, freeDevices } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();
const root = mkdtempSync(join(tmpdir(), "rank-memory-"));
afterAll(() => {
  freeDevices();
  rmSync(root, { recursive: true });
});

const LAYERS = 12;
const BLOCKS = 64;

const config = {
  model_type: "llama",
  hidden_size: 384,
  num_hidden_layers: LAYERS,
  intermediate_size: 1536,
  num_attention_heads: 12,
  num_key_value_heads: 12,
  rms_norm_eps: 1e-5,
  vocab_size: 240,
  max_position_embeddings: 256,
  tie_word_embeddings: true,
};

/** A Llama whose 12 heads and 12 layers divide evenly among 2, 3 and 4 ranks. All its weights are 0. */
function writeLlama(quantization?: { group_size: number; bits: number }): string {
  const { hidden_size: hidden, intermediate_size: width, vocab_size: vocabulary } = config;
  const tensors = new Map<string, FileTensor>();
  const put = (name: string, shape: number[], dtype: "F32" | "U32" = "F32") => {
    const bytes = bytesOf(new Uint32Array(shape.reduce((a, b) => a * b)));
    tensors.set(name, { dtype, shape, bytes });
  };
  const matrix = (name: string, rows: number, columns: number) => {
    if (!quantization) return put(`${name}.weight`, [rows, columns]);
    const { bits, group_size } = quantization;
    put(`${name}.weight`, [rows, (columns * bits) / 32], "U32");
    for (const part of ["scales", "biases"]) put(`${name}.${part}`, [rows, columns / group_size]);
  };
  matrix("model.embed_tokens", vocabulary, hidden);
  put("model.norm.weight", [hidden]);
  for (let i = 0; i < LAYERS; i++) {
    const layer = `model.layers.${i}`;
    for (const each of ["q", "k", "v", "o"])
      matrix(`${layer}.self_attn.${each}_proj`, hidden, hidden);
    matrix(`${layer}.mlp.gate_proj`, width, hidden);
    matrix(`${layer}.mlp.up_proj`, width, hidden);
    matrix(`${layer}.mlp.down_proj`, hidden, width);
    put(`${layer}.input_layernorm.weight`, [hidden]);
    put(`${layer}.post_attention_layernorm.weight`, [hidden]);
  }
  const path = mkdtempSync(join(root, "llama-"));
  writeFileSync(join(path, "config.json"), JSON.stringify({ ...config, quantization }));
  writeSafetensors(join(path, "model.safetensors"), tensors);
  return path;
}

type Held = { weights: number; kv: number };

function heldBy(path: string, part: Partial<LoadOptions> = {}): Held {
  const device = deviceOf("cpu");
  const layout = { groups: [{ blocks: BLOCKS, window: undefined }], slots: undefined };
  const before = activeMemory();
  const model = loadModel(path, { device, windows: [undefined], ...part });
  const loaded = activeMemory();
  const store = new StateStore(device, model.states, layout, model.dtype);
  const held = { weights: loaded - before, kv: activeMemory() - loaded };
  store.free();
  model.free();
  expect(activeMemory()).toBe(before);
  return held;
}

function expectWithin(share: number, found: number, expected: number): void {
  expect(found / expected).toBeGreaterThan(1 - share);
  expect(found / expected).toBeLessThan(1 + share);
}

const paths = {
  "a plain model": writeLlama(),
  "a quantized model": writeLlama({ group_size: 32, bits: 4 }),
};

const cases = [2, 3, 4].flatMap((size) =>
  (["tensor", "pipeline"] as const).map((parallel): [number, Parallel] => [size, parallel]),
);

describe.each(Object.entries(paths))("%s", (_, path) => {
  test.each(cases)("on %i ranks, %s, has its share on each", (size, parallel) => {
    const whole = heldBy(path);
    const division = { parallel };
    const ranks = { size, localSize: size, division };
    const { needs } = needsOf(deviceOf("cpu"), path, defaultEngineOptions, ranks);
    for (let rank = 0; rank < size; rank++) {
      const part = { group: plannedGroup(rank, size), parallel, layers: evenly(size) };
      const held = heldBy(path, part);
      expectWithin(0.1, held.weights, whole.weights / size);
      expectWithin(0.1, held.kv, whole.kv / size);
      expectWithin(0.1, held.weights, needs.weightBytes);
      expectWithin(0.1, held.kv, needs.costs.groups[0]!.blockBytes * BLOCKS);
    }
  });
});
