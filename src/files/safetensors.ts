// Reads the headers of safetensors files: a model's tensors, their files and positions. Native code trusts these
// values when it opens the file, so all are validated here.
import { existsSync, realpathSync } from "node:fs";
import { basename, dirname, join, sep } from "node:path";
import { openTensorData } from "./gguf.ts";
import { isObject } from "./json.ts";
import { LoadError, quoted } from "./load-error.ts";

/** Tensor types, with bytes per item. */
const itemBytes = {
  BOOL: 1,
  U8: 1,
  I8: 1,
  F8_E5M2: 1,
  F8_E4M3: 1,
  F8_E8M0: 1,
  U16: 2,
  I16: 2,
  F16: 2,
  BF16: 2,
  U32: 4,
  I32: 4,
  F32: 4,
  U64: 8,
  I64: 8,
  F64: 8,
  C64: 8,
} as const;

export type SafetensorsDtype = keyof typeof itemBytes;

export type SafetensorsTensor = {
  readonly name: string;
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
  /** Offset from the start of the file, in bytes. */
  readonly offset: number;
  readonly bytes: number;
};

export type SafetensorsHeader = {
  readonly tensors: ReadonlyMap<string, SafetensorsTensor>;
  readonly metadata: ReadonlyMap<string, string>;
};

export type SafetensorsIndex = {
  /** Paths of the shards. */
  readonly files: readonly string[];
  readonly tensors: ReadonlyMap<string, SafetensorsTensor & { readonly file: string }>;
};

/** Maximum bytes of a header, as in the reference implementation. */
const MAX_HEADER_BYTES = 100_000_000;
/** Maximum size of a dimension, which MLX stores as int32. */
const MAX_DIMENSION = 2 ** 31 - 1;
const MAX_DIMENSIONS = 8;
const SINGLE_FILE = "model.safetensors";
const INDEX_FILE = "model.safetensors.index.json";

type JsonObject = Readonly<Record<string, unknown>>;

export function readSafetensors(path: string): SafetensorsHeader {
  const { text, json, dataStart, fileSize } = readHeader(path);
  const { __metadata__: metadata = {}, ...entries } = json;
  if (!isTexts(metadata))
    throw new LoadError(`${path}: expected __metadata__ to contain only strings`);
  const tensors = Object.entries(entries)
    .map(([name, entry]) => readTensor(path, name, entry, dataStart))
    .sort((a, b) => a.offset - b.offset || a.bytes - b.bytes);
  checkPlacement(path, tensors, dataStart, fileSize);
  checkKeys(path, text, json);
  return {
    tensors: new Map(tensors.map((tensor) => [tensor.name, tensor])),
    metadata: new Map(Object.entries(metadata)),
  };
}

/** Reads model.safetensors, or the shards listed in the index. */
export function readSafetensorsIndex(folder: string): SafetensorsIndex {
  if (existsSync(join(folder, SINGLE_FILE))) {
    const file = fileInFolder(folder, SINGLE_FILE, folder);
    const { tensors } = readSafetensors(file);
    return {
      files: [file],
      tensors: new Map([...tensors].map(([name, tensor]) => [name, { ...tensor, file }])),
    };
  }
  if (!existsSync(join(folder, INDEX_FILE))) {
    throw new LoadError(`${folder}: expected ${SINGLE_FILE} or ${INDEX_FILE}, found neither`);
  }
  const path = fileInFolder(folder, INDEX_FILE, folder);
  const weightMap = readWeightMap(path);
  const shards = new Map(
    [...new Set(weightMap.values())].map((shard) => {
      const file = fileInFolder(folder, shard, path);
      return [shard, { file, header: readSafetensors(file) }];
    }),
  );
  const tensors = [...weightMap].map(([name, shard]) => {
    const { file, header } = shards.get(shard)!;
    const tensor = header.tensors.get(name);
    if (!tensor)
      throw new LoadError(`${path}: expected ${quoted(name)} in ${quoted(shard)}, found none`);
    return [name, { ...tensor, file }] as const;
  });
  return { files: [...shards.values()].map(({ file }) => file), tensors: new Map(tensors) };
}

type Header = { text: string; json: JsonObject; dataStart: number; fileSize: number };

function readHeader(path: string): Header {
  using file = openTensorData(path);
  if (file.size < 8) throw new LoadError(`${path}: not a safetensors file`);
  const prefix = Buffer.alloc(8);
  file.read(0, prefix);
  const length = Number(prefix.readBigUInt64LE());
  const left = Math.min(file.size - 8, MAX_HEADER_BYTES);
  if (length > left) {
    throw new LoadError(`${path}: expected a header of at most ${left} bytes, found ${length}`);
  }
  const bytes = Buffer.alloc(length);
  file.read(8, bytes);
  return { ...parseObject(path, "its header", bytes), dataStart: 8 + length, fileSize: file.size };
}

function parseObject(
  path: string,
  what: string,
  bytes: Uint8Array,
): { text: string; json: JsonObject } {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    const json: unknown = JSON.parse(text);
    if (isObject(json)) return { text, json };
  } catch {
    // Invalid UTF-8 or JSON gets the same error as a wrong JSON type.
  }
  throw new LoadError(`${path}: expected ${what} to be a JSON object`);
}

/** Throws if a key occurs twice: JSON.parse keeps the last value, other parsers may keep the first. */
function checkKeys(path: string, text: string, json: JsonObject): void {
  const objects = [json, ...Object.values(json).filter(isObject)];
  const kept = objects.reduce((sum, object) => sum + Object.keys(object).length, 0);
  if (countKeys(text) !== kept) {
    throw new LoadError(`${path}: a key of the header occurs twice`);
  }
}

/** Returns the number of keys in all objects of a JSON text, which is the number of colons outside strings. */
function countKeys(json: string): number {
  let keys = 0;
  let inText = false;
  for (let i = 0; i < json.length; i++) {
    const char = json[i];
    if (char === "\\") i++;
    else if (char === '"') inText = !inText;
    else if (char === ":" && !inText) keys++;
  }
  return keys;
}

function readTensor(
  path: string,
  name: string,
  entry: unknown,
  dataStart: number,
): SafetensorsTensor {
  const fail = (what: string) => new LoadError(`${path}: tensor ${quoted(name)}: ${what}`);
  if (!isObject(entry)) throw fail("expected an object");
  const { dtype, shape, data_offsets: offsets, ...others } = entry;
  if (Object.keys(others).length > 0) {
    throw fail(`expected dtype, shape and data_offsets, found ${quoted(Object.keys(others)[0]!)}`);
  }
  if (!isDtype(dtype)) throw fail(`unknown dtype ${shown(dtype)}`);
  if (!isSizes(shape) || shape.length > MAX_DIMENSIONS) {
    throw fail(`expected shape to be a list of up to ${MAX_DIMENSIONS} sizes`);
  }
  if (!isSizes(offsets) || offsets.length !== 2) throw fail("expected two data_offsets");
  const item = itemBytes[dtype];
  if (shape.some((dimension) => dimension > MAX_DIMENSION) || overflows(shape, item)) {
    throw fail(`its shape ${shape.join(" x ")} is too large`);
  }
  const [begin, end] = offsets as [number, number];
  const bytes = shape.reduce((product, dimension) => product * dimension, item);
  if (bytes !== end - begin) {
    throw fail(`expected ${bytes} bytes for ${dtype} ${shape.join(" x ")}, found ${end - begin}`);
  }
  return { name, dtype, shape, offset: dataStart + begin, bytes };
}

/** Throws unless the tensors fill the rest of the file without gaps or overlaps, as the format requires. */
function checkPlacement(
  path: string,
  sorted: readonly SafetensorsTensor[],
  dataStart: number,
  fileSize: number,
): void {
  let end = dataStart;
  for (const { name, offset, bytes } of sorted) {
    if (offset !== end) {
      throw new LoadError(
        `${path}: tensor ${quoted(name)}: expected its bytes at ${end}, found ${offset}`,
      );
    }
    end = offset + bytes;
  }
  if (end !== fileSize) {
    throw new LoadError(`${path}: expected a file of ${end} bytes, found ${fileSize}`);
  }
}

/** Reads the name of the file that contains each tensor, by tensor name. */
function readWeightMap(path: string): Map<string, string> {
  using file = openTensorData(path);
  if (file.size > MAX_HEADER_BYTES) {
    throw new LoadError(`${path}: expected at most ${MAX_HEADER_BYTES} bytes, found ${file.size}`);
  }
  const bytes = Buffer.alloc(file.size);
  file.read(0, bytes);
  const { weight_map: map } = parseObject(path, "it", bytes).json;
  if (!isObject(map)) throw new LoadError(`${path}: expected weight_map to be an object`);
  const files = new Map<string, string>();
  for (const [name, shard] of Object.entries(map)) {
    if (typeof shard !== "string" || !/^[^/\\\p{Cc}]+\.safetensors$/u.test(shard)) {
      throw new LoadError(
        `${path}: expected a .safetensors file name for ${quoted(name)}, found ${shown(shard)}`,
      );
    }
    files.set(name, shard);
  }
  return files;
}

/** Returns a file's path in the folder; throws if it links elsewhere. `named`: folder or index that errors name. */
function fileInFolder(folder: string, name: string, named: string): string {
  const path = join(folder, name);
  if (!existsSync(path)) {
    throw new LoadError(`${named}: it names ${quoted(name)}, which does not exist`);
  }
  const root = realpathSync(folder);
  // In Hugging Face's cache, snapshots/<revision>/<file> may link to blobs/<hash> beside the snapshots.
  const isSnapshot = basename(dirname(root)) === "snapshots";
  const places = isSnapshot ? [root, join(root, "../../blobs")] : [root];
  const target = realpathSync(path);
  if (places.some((place) => target.startsWith(place + sep))) return path;
  throw new LoadError(`${named}: ${quoted(name)} is a link to a place outside the folder`);
}

/** Whether the size in bytes overflows. Zeros count as 1: a reader may multiply by them after the overflow. */
function overflows(shape: readonly number[], bytes: number): boolean {
  const most = shape.reduce((product, dimension) => product * Math.max(dimension, 1), bytes);
  return !Number.isSafeInteger(most);
}

/** Describes a JSON value of the wrong type; values other than text may be nested too deeply to print. */
function shown(value: unknown): string {
  return typeof value === "string" ? quoted(value) : typeof value;
}

function isTexts(value: unknown): value is Readonly<Record<string, string>> {
  return isObject(value) && Object.values(value).every((item) => typeof item === "string");
}

function isDtype(value: unknown): value is SafetensorsDtype {
  return typeof value === "string" && Object.keys(itemBytes).includes(value);
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && item >= 0);
}
