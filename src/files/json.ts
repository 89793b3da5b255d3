// Reads the JSON files of a model, such as its config.
import { existsSync } from "node:fs";
import { openTensorData } from "./gguf.ts";
import { LoadError } from "./load-error.ts";

const MAX_BYTES = 100_000_000;

export function readBytes(path: string): Uint8Array {
  if (!existsSync(path)) throw new LoadError(`${path} is missing`);
  using file = openTensorData(path);
  if (file.size > MAX_BYTES) throw new LoadError(`${path} has ${file.size} bytes`);
  const bytes = new Uint8Array(file.size);
  file.read(0, bytes);
  return bytes;
}

type JsonObject = Readonly<Record<string, unknown>>;

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function readJson(path: string): JsonObject {
  const bytes = readBytes(path);
  try {
    const value = parsed(new TextDecoder().decode(bytes));
    if (isObject(value)) return value;
  } catch {
    // Invalid JSON gets the same error as JSON that is not an object.
  }
  throw new LoadError(`${path} does not contain a JSON object`);
}

/** Parses JSON that may contain Python's Infinity (replaced by 1e999, which is infinite) and NaN (by null). */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    const words: Record<string, string> = { Infinity: "1e999", NaN: "null" };
    const known = text.replace(/"(?:[^"\\]|\\.)*"|Infinity|NaN/g, (found) => words[found] ?? found);
    return JSON.parse(known);
  }
}
