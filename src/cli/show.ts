// mlx-serve show: what a model is, from its config and the headers of its weights. No native code
// sees the files here.
import { readFileSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { type Gguf, readGguf } from "../files/gguf.ts";
import { LoadError } from "../files/load-error.ts";
import {
  readSafetensorsIndex,
  type SafetensorsIndex,
  type SafetensorsTensor,
} from "../files/safetensors.ts";
import { formatBytes } from "../hub/bytes.ts";
import { filesOf } from "../hub/cache.ts";
import { codeOf, HubError } from "../hub/hub-error.ts";
import type { Environment } from "../hub/settings.ts";
import { type ModelSource, resolveModel } from "../hub/source.ts";
import { printable } from "../printable.ts";
import { print } from "./print.ts";

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

export async function show(args: string[], env: Environment = process.env): Promise<void> {
  const { values, positionals } = parseArgs({
    args,
    options: { json: { type: "boolean" } },
    allowPositionals: true,
  });
  const [name = "default", ...more] = positionals;
  if (more.length > 0) throw new HubError("usage: mlx-serve show [model] [--json]");
  const model = describeModel(resolveModel(name, { env }));
  print(values.json ? JSON.stringify(model, null, 2) : asText(model));
}

export function describeModel(source: ModelSource): ModelDescription {
  return source.kind === "gguf" ? describeGguf(source) : describeFolder(source);
}

function describeGguf({ name, path }: ModelSource): ModelDescription {
  const gguf = readGguf(path);
  const text = (key: string) => optional(gguf.metadata.get(key), "string");
  const architecture = text("general.architecture");
  const contextLength = optional(gguf.metadata.get(`${architecture}.context_length`), "number");
  const type = mainType(gguf);
  const { size: bytes } = statSync(path);
  return {
    name,
    path,
    format: "gguf",
    ...(architecture !== undefined && { architecture }),
    parameters: sum([...gguf.tensors.values()].map(({ shape }) => product(shape))),
    ...(contextLength !== undefined && { contextLength }),
    ...(type !== undefined &&
      (/^(BF|F)\d/.test(type) ? { dtype: type.toLowerCase() } : { quantization: type })),
    hasChatTemplate: text("tokenizer.chat_template") !== undefined,
    files: [{ path: basename(path), bytes }],
  };
}

/** The type that most of the weights have. */
function mainType(gguf: Gguf): string | undefined {
  const tensors = [...gguf.tensors.values()];
  return heaviest(tensors.map(({ type, shape }) => [type, product(shape)]));
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
 * Counts parameters, not stored elements: MLX stores one scale for each group of a quantized weight.
 * The layouts of other tools are not known here.
 */
function parametersOf(config: Json, { tensors }: SafetensorsIndex): number | undefined {
  const groups = isObject(config.quantization) ? config.quantization : undefined;
  if (!groups && isObject(config.quantization_config)) return undefined;
  const groupOf = (layer: string) => {
    const own = groups?.[layer];
    return Number((isObject(own) ? own.group_size : groups?.group_size) ?? 64);
  };
  return sum(
    [...tensors.values()].map(({ name, shape }) => {
      const [, layer, kind] = /^(.*)\.(weight|scales|biases)$/.exec(name) ?? [];
      const isPacked = groups && layer !== undefined && tensors.has(`${layer}.scales`);
      if (!isPacked) return product(shape);
      return kind === "scales" ? product(shape) * groupOf(layer) : 0;
    }),
  );
}

/** Of the weights that are not quantized. */
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

function asText(model: ModelDescription): string {
  const { parameters, files } = model;
  const rows = Object.entries({
    model: model.name,
    format: model.format,
    architecture: model.architecture ?? "unknown",
    parameters: parameters === undefined ? "unknown" : counted(parameters),
    quantization: model.quantization ?? "none",
    context: model.contextLength === undefined ? "unknown" : `${model.contextLength} tokens`,
    ...(model.dtype !== undefined && { dtype: model.dtype }),
    template: model.hasChatTemplate ? "yes" : "no",
    size: formatBytes(sum(files.map(({ bytes }) => bytes))),
    path: model.path,
  }).map(([key, value]) => `${key.padEnd(14)}${printable(value)}`);
  const names = files.map(({ path }) => printable(path));
  const width = Math.max(...names.map(({ length }) => length));
  const list = files.map(({ bytes }, i) => `  ${names[i]!.padEnd(width)}  ${formatBytes(bytes)}`);
  return [...rows, "files", ...list].join("\n");
}

/** 134.5 M, 7.2 B */
function counted(parameters: number): string {
  if (parameters >= 1e9) return `${(parameters / 1e9).toFixed(1)} B`;
  return parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)} M` : String(parameters);
}

function readJson(path: string): Json {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    throw new LoadError(`${path}: cannot be read (${codeOf(error)})`);
  }
  try {
    const json: unknown = JSON.parse(text);
    if (isObject(json)) return json;
  } catch {
    // Invalid JSON is reported like JSON of the wrong shape.
  }
  throw new LoadError(`${path}: expected a JSON object`);
}

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
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

function product(numbers: readonly number[]): number {
  return numbers.reduce((result, number) => result * number, 1);
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((result, number) => result + number, 0);
}
