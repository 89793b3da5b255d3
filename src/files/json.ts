// A JSON file of a model: its configuration, its tokenizer.
import { existsSync } from "node:fs";
import { openTensorData } from "./gguf.ts";
import { LoadError } from "./load-error.ts";

const MAX_JSON_BYTES = 100_000_000;

export function readJson(path: string): Record<string, unknown> {
  if (!existsSync(path)) throw new LoadError(`${path} is missing`);
  using file = openTensorData(path);
  if (file.size > MAX_JSON_BYTES) throw new LoadError(`${path} has ${file.size} bytes`);
  const bytes = new Uint8Array(file.size);
  file.read(0, bytes);
  try {
    const value: unknown = JSON.parse(new TextDecoder().decode(bytes));
    if (typeof value === "object" && value !== null && !Array.isArray(value)) {
      return value as Record<string, unknown>;
    }
  } catch {
    // The line below says it.
  }
  throw new LoadError(`${path} does not hold a JSON object`);
}
