// Describes a model by its config and the headers of its weights, without native code.
import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { type Gguf, readGguf } from "../files/gguf.ts";
import { readGgufModel } from "../files/gguf-parts.ts";
import { isObject, readJson } from "../files/json.ts";
import {
  readSafetensorsIndex,
  type SafetensorsIndex,
  type SafetensorsTensor,
} from "../files/safetensors.ts";
import { filesOf } from "../hub/cache.ts";
import type { ModelSource } from "../hub/source.ts";
import { embeddingOf } from "../text/embedding.ts";

export type ModelDescription = {
  readonly name: string;
  readonly path: string;
  readonly format: "safetensors" | "gguf";
  readonly architecture?: string;
  readonly parameters?: number;
  readonly quantization?: string;
  readonly contextLength?: number;
  readonly dtype?: string;
  readonly hasChatTemplate: boolean;
  readonly files: readonly { readonly path: string; readonly bytes: number }[];
};

type Json = Readonly<Record<string, unknown>>;

const GGUF_TEMPLATE = "tokenizer.chat_template";

export function describeModel(source: ModelSource): ModelDescription {
  return source.kind === "gguf" ? describeGguf(source) : describeFolder(source);
}

function describeGguf({ name, path }: ModelSource): ModelDescription {
  const gguf = readGgufModel(path);
  const text = (key: string) => optional(gguf.metadata.get(key), "string");
  const architecture = text("general.architecture");
  const contextLength = optional(gguf.metadata.get(`${architecture}.context_length`), "number");
  const type = mainType(gguf);
  return {
    name,
    path,
    format: "gguf",
    ...(architecture !== undefined && { architecture }),
    parameters: gguf.tensors.values().reduce((sum, { shape }) => sum + numbersIn(shape), 0),
    ...(contextLength !== undefined && { contextLength }),
    ...(type !== undefined &&
      (/^(BF|F)\d/.test(type) ? { dtype: type.toLowerCase() } : { quantization: type })),
    hasChatTemplate: text(GGUF_TEMPLATE) !== undefined,
    files: gguf.files.map((file) => ({ path: basename(file), bytes: statSync(file).size })),
  };
}

/** Returns the type of most weights. */
function mainType(gguf: Gguf): string | undefined {
  const tensors = [...gguf.tensors.values()];
  return heaviest(tensors.map(({ type, shape }) => [type, numbersIn(shape)]));
}

function describeFolder({ name, path }: ModelSource): ModelDescription {
  const config = readJson(join(path, "config.json"));
  const index = readSafetensorsIndex(path);
  const architecture = architectureOf(config);
  const contextLength = contextLengthOf(config);
  const quantization = quantizationOf(config);
  const parameters = parametersOf(config, index);
  const dtype = dtypeOf(index);
  return {
    name,
    path,
    format: "safetensors",
    ...(architecture !== undefined && { architecture }),
    ...(parameters !== undefined && { parameters }),
    ...(quantization !== undefined && { quantization }),
    ...(contextLength !== undefined && { contextLength }),
    ...(dtype !== undefined && { dtype }),
    hasChatTemplate: hasChatTemplate(path),
    files: filesOf(path),
  };
}

function architectureOf(config: Json): string | undefined {
  const classes = Array.isArray(config.architectures) ? config.architectures : [];
  return optional(config.model_type, "string") ?? optional(classes[0], "string");
}

function contextLengthOf(config: Json): number | undefined {
  const names = ["max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"];
  const inner = isObject(config.text_config) ? config.text_config : {};
  const found = names.map((key) => config[key] ?? inner[key]).find((value) => value !== undefined);
  return optional(found, "number");
}

function quantizationOf(config: Json): string | undefined {
  if (isObject(config.quantization)) {
    const { bits, group_size: group, mode = "affine" } = config.quantization;
    return `${bits} bits, groups of ${group}, ${mode}`;
  }
  const other = isObject(config.quantization_config) ? config.quantization_config : {};
  return optional(other.quant_method, "string");
}

/**
 * Counts parameters, not stored elements: MLX packs quantized weights and stores scales per group. Returns undefined
 * for quantized layouts other than MLX's.
 */
function parametersOf(config: Json, { tensors }: SafetensorsIndex): number | undefined {
  const groups = isObject(config.quantization) ? config.quantization : undefined;
  if (!groups && isObject(config.quantization_config)) return undefined;
  const groupOf = (layer: string) => {
    const own = groups?.[layer];
    return Number((isObject(own) ? own.group_size : groups?.group_size) ?? 64);
  };
  return tensors.values().reduce((sum, { name, shape }) => {
    const [, layer, kind] = /^(.*)\.(weight|scales|biases)$/.exec(name) ?? [];
    const count = numbersIn(shape);
    if (!groups || layer === undefined || !tensors.has(`${layer}.scales`)) return sum + count;
    return kind === "scales" ? sum + count * groupOf(layer) : sum;
  }, 0);
}

/** Returns the dtype of the unquantized weights. */
function dtypeOf({ tensors }: SafetensorsIndex): string | undefined {
  const floats = [...tensors.values()].filter(({ dtype }) => /^(BF|F)\d/.test(dtype));
  return heaviest(
    floats.map((tensor: SafetensorsTensor) => [tensor.dtype, tensor.bytes]),
  )?.toLowerCase();
}

function hasChatTemplate(folder: string): boolean {
  const names = new Set(filesOf(folder).map(({ path }) => path));
  if (names.has("chat_template.jinja") || names.has("chat_template.json")) return true;
  if (!names.has("tokenizer_config.json")) return false;
  return readJson(join(folder, "tokenizer_config.json")).chat_template !== undefined;
}

/** Returns the chat template; the template for tools if there are several. */
export function chatTemplateOf({ kind, path }: ModelSource): string | undefined {
  if (kind === "gguf") return optional(readGguf(path).metadata.get(GGUF_TEMPLATE), "string");
  const file = join(path, "chat_template.jinja");
  if (existsSync(file)) return readFileSync(file, "utf8");
  const processor = join(path, "chat_template.json");
  const found = existsSync(processor) ? readJson(processor).chat_template : undefined;
  if (typeof found === "string") return found;
  const config = join(path, "tokenizer_config.json");
  const { chat_template: listed } = existsSync(config) ? readJson(config) : {};
  if (!Array.isArray(listed)) return optional(listed, "string");
  const named = listed.filter(isObject);
  const one = (name: string) => named.find((each) => each.name === name);
  return optional((one("tool_use") ?? one("default") ?? named[0])?.template, "string");
}

export function isEmbedder({ kind, path }: ModelSource): boolean {
  if (kind === "gguf") return false;
  const text = (name: string) => {
    const file = join(path, name);
    return existsSync(file) ? readFileSync(file, "utf8") : undefined;
  };
  return embeddingOf(text) !== undefined;
}

/** Formats a parameter count: 134.5 M, 7.2 B. */
export function counted(parameters: number): string {
  if (parameters >= 1e9) return `${(parameters / 1e9).toFixed(1)} B`;
  return parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)} M` : String(parameters);
}

type Kinds = { string: string; number: number };

function optional<K extends keyof Kinds>(value: unknown, kind: K): Kinds[K] | undefined {
  return typeof value === kind ? (value as Kinds[K]) : undefined;
}

function heaviest(weights: readonly (readonly [string, number])[]): string | undefined {
  const totals = new Map<string, number>();
  for (const [key, weight] of weights) totals.set(key, (totals.get(key) ?? 0) + weight);
  return [...totals].sort((a, b) => b[1] - a[1])[0]?.[0];
}

function numbersIn(shape: readonly number[]): number {
  return shape.reduce((a, b) => a * b, 1);
}
