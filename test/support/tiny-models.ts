// Tiny models of every architecture: configurations from test/golden/models/configs.json, weights from a
// hash of their names, written to a folder as a real model's files. scripts/goldens/models.py computes
// the same weights and writes mlx-lm's outputs, scripts/goldens/authors_fixes.py those of transformers where mlx-lm
// differs from the authors.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import { type Quantization, quantize } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { type LoadedModel, type LoadOptions, loadModel } from "../../src/model/load.ts";
import {
  bytesOf,
  type FileTensor,
  valuesOf,
  writeSafetensors,
} from "../../src/self-test/tiny-weights.ts";
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
  /** Names and shapes, where they are not the golden's. */
  tensors?: Golden["tensors"];
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

const folder = join(import.meta.dir, "../golden");
const readJson = (name: string) => JSON.parse(readFileSync(join(folder, name), "utf8"));

const configs: TinyCase[] = readJson("models/configs.json");
const goldens: Record<string, Golden> = {
  ...readJson("models/goldens.json"),
  ...readJson("authors/tiny-models.json"),
};

const named = (name: string | undefined) => configs.find((other) => other.name === name);

export const tinyCases: TinyCase[] = configs.map((tiny) => ({ ...named(tiny.extends), ...tiny }));

export function tinyCase(name: string): TinyCase {
  return tinyCases.find((tiny) => tiny.name === name)!;
}

export function goldenOf({ name, extends: base, tensors: own }: TinyCase): Golden {
  const tensors = own ?? goldens[base ?? name]!.tensors;
  return { ...goldens[name]!, tensors };
}

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
