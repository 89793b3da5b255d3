// Models built into the self-test: configurations and mlx-lm's outputs. Weights are generated from a seed.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import carried from "./models.json";
import {
  affineQuantized,
  bytesOf,
  type FileTensor,
  type TinyWeights,
  valuesOf,
  writeSafetensors,
} from "./tiny-weights.ts";

type AffineJson = { group_size: number; bits: number };

export type TinyModel = TinyWeights & {
  name: string;
  seed: number;
  tensors: Record<string, number[]>;
  /** Quantization as in MLX's config.json: the default, and exceptions by the names of matrices. */
  quantization?: (AffineJson & Record<string, unknown>) | undefined;
  prompt: number[];
  /** Logits of the prompt's last token. */
  last: number[];
  /** Tokens that greedy decoding generates. */
  greedy: number[];
};

/**
 * The kind of state that each model's layers keep. scripts/goldens/self-test.ts writes models.json from this list.
 */
export const keptBy = {
  llama: "keys and values",
  qwen3: "keys and values",
  gemma3_text: "keys and values of windows",
  gpt_oss: "keys and values of windows, with sinks",
  llama4_text: "keys and values of chunks",
  gemma4_text: "keys and values that layers share",
  qwen3_moe: "keys and values, with experts",
  "llama-q4": "keys and values, 4 bits",
  "qwen3_moe-separate-q4": "keys and values, with experts of 4 bits",
  deepseek_v3: "latents",
  mamba: "a state",
  mamba2: "a state",
  rwkv7: "a state",
  lfm2: "inputs of convolutions",
  qwen3_next: "a state, and keys and values",
  kimi_linear: "a state, and latents",
} as const satisfies Record<string, string>;

export const modelNames = Object.keys(keptBy);

export const tinyModels = carried as unknown as readonly TinyModel[];

export function tinyModel(name: keyof typeof keptBy): TinyModel {
  return tinyModels.find((model) => model.name === name)!;
}

/** Writes the configuration and the weights of a model. */
export function writeTinyModel(folder: string, model: TinyModel): void {
  const { config, quantization, seed } = model;
  const written = quantization ? { ...config, quantization } : config;
  writeFileSync(join(folder, "config.json"), JSON.stringify(written));
  const file = new Map<string, FileTensor>();
  for (const [name, shape] of Object.entries(model.tensors)) {
    const values = valuesOf(model, seed, name, shape);
    const how = quantizationOf(model, name, shape);
    if (!how) file.set(name, { dtype: "F32", shape, bytes: bytesOf(values) });
    else {
      const { packed, scales, biases } = affineQuantized(values, how.group_size, how.bits);
      const rows = shape.slice(0, -1);
      const groups = [...rows, shape.at(-1)! / how.group_size];
      const words = [...rows, (shape.at(-1)! * how.bits) / 32];
      const part = (kind: string) => name.replace(/weight$/, kind);
      file.set(name, { dtype: "U32", shape: words, bytes: bytesOf(packed) });
      file.set(part("scales"), { dtype: "F32", shape: groups, bytes: bytesOf(scales) });
      file.set(part("biases"), { dtype: "F32", shape: groups, bytes: bytesOf(biases) });
    }
  }
  writeSafetensors(join(folder, "model.safetensors"), file);
}

function quantizationOf(
  { quantization }: TinyModel,
  name: string,
  shape: number[],
): AffineJson | undefined {
  if (!quantization || !name.endsWith(".weight") || shape.length < 2) return undefined;
  const own = quantization[name.replace(/\.weight$/, "")];
  return (own as AffineJson | undefined) ?? quantization;
}
