// Opens a model's files of any format: gives its configuration, and its tensors under Hugging Face's names.
import { join } from "node:path";
import { type GgufTensor, openTensorData, type TensorData } from "../../files/gguf.ts";
import { readGgufModel } from "../../files/gguf-parts.ts";
import { dequantize } from "../../files/gguf-quants.ts";
import { readJson } from "../../files/json.ts";
import { LoadError, quoted } from "../../files/load-error.ts";
import { readSafetensorsIndex } from "../../files/safetensors.ts";
import { ggufConfig } from "./gguf/config.ts";
import { huggingFaceName, inputOrder, predictsFurther, rowOrder } from "./gguf/names.ts";
import { inputOrderOf, restored, separated } from "./gguf/tensors.ts";
import { asMlxLayout } from "./quantized-folder.ts";
import type { StoredTensor } from "./stored/tensor.ts";

export type Checkpoint = {
  /** Path of the folder or file, for messages. */
  path: string;
  format: "safetensors" | "gguf";
  config: Readonly<Record<string, unknown>>;
  tensors: ReadonlyMap<string, StoredTensor>;
  close(): void;
};

/** Opens a folder with config.json and safetensors, or a GGUF file (the first of several parts). */
export function openCheckpoint(path: string): Checkpoint {
  return path.endsWith(".gguf") ? openGguf(path) : openFolder(path);
}

function openFolder(path: string): Checkpoint {
  const config = readJson(join(path, "config.json"));
  const index = readSafetensorsIndex(path);
  const files = openFiles();
  const tensors = new Map<string, StoredTensor>();
  for (const [name, { shape, dtype, offset, bytes, file }] of index.tensors) {
    const read = (from: number, target: Uint8Array) => files.open(file).read(offset + from, target);
    tensors.set(name, { name, shape, format: dtype, bytes, read });
  }
  try {
    const converted = asMlxLayout(config, tensors);
    return { path, format: "safetensors", config, tensors: converted, close: files.close };
  } catch (error) {
    files.close();
    throw error;
  }
}

function openGguf(path: string): Checkpoint {
  const gguf = readGgufModel(path);
  const files = openFiles();
  try {
    const fileOf = ({ name }: GgufTensor) => files.open(gguf.tensors.get(name)!.file);
    const config = ggufConfig(gguf, (tensor) => readNumbers(tensor, fileOf(tensor)));
    const tensors = new Map<string, StoredTensor>();
    const add = (stored: string, tensor: StoredTensor) => {
      const name = huggingFaceName(stored, config.model_type);
      if (name === undefined || predictsFurther(stored, config)) return;
      if (tensors.has(name)) throw new LoadError(`${path}: ${quoted(stored)} appears twice`);
      const order = rowOrder(stored, tensor.shape, config);
      tensors.set(name, restored(stored, { ...tensor, name, rowOrder: order }));
      const columns = inputOrder(stored, config);
      if (!columns) return;
      const orderName = name.replace(/weight$/, "input_order");
      tensors.set(orderName, inputOrderOf(orderName, tensor.shape.at(-1) ?? 1, columns));
    };
    for (const { name, shape, type: format, offset, bytes, file } of gguf.tensors.values()) {
      const read = (from: number, target: Uint8Array) =>
        files.open(file).read(offset + from, target);
      const parts = separated(name, { name, shape, format, bytes, read });
      for (const [own, tensor] of parts) add(own, tensor);
    }
    return { path, format: "gguf", config, tensors, close: files.close };
  } catch (error) {
    files.close();
    throw error;
  }
}

/** Makes a cache of open files, which opens each file once, at its first read. */
function openFiles() {
  const files = new Map<string, TensorData>();
  return {
    open: (path: string) => files.getOrInsertComputed(path, openTensorData),
    close(): void {
      for (const file of files.values()) file.close();
    },
  };
}

function readNumbers({ type, shape, offset, bytes }: GgufTensor, data: TensorData): number[] {
  const source = new Uint8Array(bytes);
  const numbers = new Float32Array(shape.reduce((a, b) => a * b));
  data.read(offset, source);
  dequantize(type, source, numbers);
  return Array.from(numbers);
}
