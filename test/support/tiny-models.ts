// Tiny models of every architecture: configurations from test/golden/models/configs.json, weights from a
// hash of their names, written to a folder as a real model's files. scripts/goldens/models.py computes
// the same weights and writes what mlx-lm makes of them.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import { type Quantization, quantize } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { type LoadedModel, type LoadOptions, loadModel } from "../../src/model/load.ts";
import { type AuthorsLayout, inAuthorsLayout, joint, separate } from "./authors-layout.ts";
import { onCpu } from "./mlx.ts";

type QuantizationJson = {
  group_size: number;
  bits: number;
  mode?: "affine" | "mxfp4" | "mxfp8" | "nvfp4";
};

export type TinyCase = {
  name: string;
  config: Record<string, unknown> & { model_type: string };
  /** As MLX's config.json has it: for all matrices, and under their names for some. */
  quantization?: QuantizationJson & Record<string, unknown>;
  quantize_only?: string;
  /**
   * How the file holds experts and what heads make of latents; "stacked" is MLX's way, the others are the authors'.
   * Or all that differs.
   */
  layout?: "stacked" | "separate" | "joint" | "blocks" | AuthorsLayout;
  /** Tensors that are not the text model's. */
  extra?: Record<string, number[]>;
  gains?: Record<string, number>;
  extends?: string;
  /** Of the file, where mlx-lm reads another. */
  file_config?: Record<string, unknown>;
};

export type Golden = {
  seed: number;
  tensors: Record<string, number[]>;
  prompt: number[];
  /** The logits of the prompt's last token. */
  last: number[];
  /** [position, its first logits] */
  sampled: [number, number[]][];
  greedy: number[];
};

const folder = join(import.meta.dir, "../golden/models");
const readJson = (name: string) => JSON.parse(readFileSync(join(folder, name), "utf8"));

const configs: TinyCase[] = readJson("configs.json");
const goldens: Record<string, Golden> = readJson("goldens.json");

const named = (name: string | undefined) => configs.find((other) => other.name === name);

export const tinyCases: TinyCase[] = configs.map((tiny) => ({ ...named(tiny.extends), ...tiny }));

export function tinyCase(name: string): TinyCase {
  return tinyCases.find((tiny) => tiny.name === name)!;
}

export function goldenOf({ name, extends: base }: TinyCase): Golden {
  const { tensors } = goldens[base ?? name]!;
  return { ...goldens[name]!, tensors };
}

/** One tensor of a safetensors file. */
export type FileTensor = { dtype: "F32" | "U32" | "U8"; shape: number[]; bytes: Uint8Array };

/** Writes the model's folder. In MLX's thread: it is MLX that quantizes. */
export function writeTinyModel(path: string, tiny: TinyCase): void {
  const { quantization, config, file_config = config } = tiny;
  const written = quantization ? { ...file_config, quantization } : file_config;
  writeFileSync(join(path, "config.json"), JSON.stringify(written));
  writeSafetensors(join(path, "model.safetensors"), tensorsOf(tiny));
}

/** The model, as it is read from such a folder. Its holder frees it. */
export function loadTinyModel(tiny: TinyCase, options: LoadOptions): LoadedModel {
  const folder = mkdtempSync(join(tmpdir(), "tiny-"));
  try {
    writeTinyModel(folder, tiny);
    return loadModel(folder, options);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

export function writeSafetensors(path: string, tensors: ReadonlyMap<string, FileTensor>): void {
  let end = 0;
  const header: Record<string, unknown> = {};
  for (const [name, { dtype, shape, bytes }] of tensors) {
    header[name] = { dtype, shape, data_offsets: [end, end + bytes.length] };
    end += bytes.length;
  }
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.from(BigUint64Array.of(BigInt(text.length)).buffer);
  const data = [...tensors.values()].map(({ bytes }) => bytes);
  writeFileSync(path, Buffer.concat([length, text, ...data]));
}

/** As MLX's files have them, not quantized. */
export function plainTensors({
  quantization: _,
  layout: _layout,
  extra: _extra,
  ...tiny
}: TinyCase) {
  return tensorsOf(tiny);
}

function tensorsOf(tiny: TinyCase): Map<string, FileTensor> {
  const { seed, tensors } = goldenOf(tiny);
  using _ = new Scope();
  const file = new Map<string, FileTensor>();
  const plain = (name: string, shape: number[]): FileTensor => {
    return { dtype: "F32", shape, bytes: bytesOf(valuesOf(tiny, seed, name, shape)) };
  };
  for (const [name, shape] of Object.entries(tiny.extra ?? {})) file.set(name, plain(name, shape));
  for (const [name, shape] of Object.entries(tensors)) {
    const quantization = quantizationOf(tiny, name, shape);
    if (!quantization) file.set(name, plain(name, shape));
    else pack(file, name, array(valuesOf(tiny, seed, name, shape), shape), quantization);
  }
  const { layout } = tiny;
  if (typeof layout === "object") return inAuthorsLayout(file, layout);
  if (layout === "separate") return separate(file);
  if (layout === "joint") return joint(separate(file));
  return layout === "blocks" ? inBlocks(file) : file;
}

function quantizationOf(
  { quantization, quantize_only = "" }: TinyCase,
  name: string,
  shape: number[],
): Quantization | undefined {
  const isMatrix = name.endsWith(".weight") && shape.length > 1;
  if (!quantization || !isMatrix || !name.includes(quantize_only)) return undefined;
  const chosen = quantization[name.replace(/\.weight$/, "")] ?? quantization;
  if (chosen === false) return undefined;
  const { bits, group_size: groupSize, mode = "affine" } = chosen as QuantizationJson;
  // What a convolution has.
  if (shape.at(-1)! % groupSize !== 0) return undefined;
  return { bits, groupSize, mode };
}

/** The two or three tensors that MLX makes of a matrix, on a CPU: on CUDA it rounds some weights the other way. */
function pack(
  file: Map<string, FileTensor>,
  name: string,
  numbers: MlxArray,
  quantization: Quantization,
): void {
  const parts = onCpu(() => {
    const { weight, scales, biases } = quantize(numbers, quantization);
    const all = { weight, scales, ...(biases && { biases }) };
    evaluate(...Object.values(all));
    return all;
  });
  for (const [part, made] of Object.entries(parts)) {
    const data = made.data();
    const dtype = data instanceof Uint32Array ? "U32" : data instanceof Uint8Array ? "U8" : "F32";
    const shape = [...made.shape];
    file.set(name.replace(/weight$/, part), { dtype, shape, bytes: bytesOf(data) });
  }
}

const blockSuffixes: Record<string, string> = {
  weight: "_blocks",
  scales: "_scales",
  bias: "_bias",
};

/** OpenAI's way: gate and up row by row in one tensor, mxfp4 in blocks of 16 bytes. */
function inBlocks(file: ReadonlyMap<string, FileTensor>): Map<string, FileTensor> {
  const result = new Map<string, FileTensor>();
  for (const [name, tensor] of file) {
    const [, prefix, part, kind] = /^(.*\.experts)\.(\w+)\.(\w+)$/.exec(name) ?? [];
    if (!prefix || !kind) {
      result.set(name, tensor);
    } else if (part !== "up_proj") {
      const up = file.get(`${prefix}.up_proj.${kind}`)!;
      const { dtype, shape, bytes } = part === "gate_proj" ? takingTurns(tensor, up) : tensor;
      const isWeight = kind === "weight";
      result.set(
        `${prefix}.${part === "gate_proj" ? "gate_up_proj" : part}${blockSuffixes[kind]}`,
        {
          dtype: isWeight ? "U8" : dtype,
          shape: isWeight ? [...shape.slice(0, 2), shape[2]! / 4, 16] : shape,
          bytes,
        },
      );
    }
  }
  return result;
}

function takingTurns(a: FileTensor, b: FileTensor): FileTensor {
  const [experts, rows, ...rest] = a.shape as [number, number];
  const size = a.bytes.length / (experts * rows);
  const row = (bytes: Uint8Array, i: number) => bytes.subarray(i * size, (i + 1) * size);
  const parts = Array.from({ length: experts * rows }, (_, i) => [
    row(a.bytes, i),
    row(b.bytes, i),
  ]);
  return { ...a, shape: [experts, rows * 2, ...rest], bytes: Buffer.concat(parts.flat()) };
}

/** Whose norms are stored as their distance from 1. */
const normsFromOne = ["gemma", "gemma2", "gemma3", "gemma3_text", "nemotron", "plamo3"];

/** Of the names of embeddings. */
const embeddings =
  /embed_tokens|wte\.|wpe\.|embed_in\.|tok_embeddings\.|token_embeddings\.|model\.embed\.|model\.embedding\./;

export function valuesOf(
  tiny: Pick<TinyCase, "config" | "gains">,
  seed: number,
  name: string,
  shape: number[],
): Float32Array {
  let gain = 1;
  for (const [part, factor] of Object.entries(tiny.gains ?? {})) {
    if (name.includes(part)) gain *= factor;
  }
  let [center, reach] = [0, 0.3];
  if (name.endsWith(".weight") && shape.length > 1) {
    reach = embeddings.test(name) ? 0.5 : Math.sqrt(3 / shape.at(-1)!) * 1.5;
  } else if (name.endsWith(".weight") && !normsFromOne.includes(tiny.config.model_type)) {
    center = 1;
  } else if (name.endsWith(".sinks")) {
    reach = 2;
  }
  const factor = Math.fround(reach * gain);
  const count = shape.reduce((a, b) => a * b, 1);
  return uniform(`${seed}/${name}`, count).map((x) => Math.fround(x * factor) + center);
}

/** Numbers in [-1, 1), multiples of 2^-23: a hash of their index, seeded by the key. */
export function uniform(key: string, count: number): Float32Array {
  const start = fnv1a(key);
  return Float32Array.from({ length: count }, (_, i) => {
    let x = (Math.imul(i, 0x9e37_79b1) + start) | 0;
    x = Math.imul(x ^ (x >>> 16), 0x85eb_ca6b);
    x = Math.imul(x ^ (x >>> 13), 0xc2b2_ae35);
    x ^= x >>> 16;
    return (x >>> 8) / 2 ** 23 - 1;
  });
}

function fnv1a(text: string): number {
  let value = 0x811c_9dc5 | 0;
  for (const byte of Buffer.from(text)) value = Math.imul(value ^ byte, 0x0100_0193);
  return value;
}

function bytesOf(data: ArrayBufferView): Uint8Array {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}
