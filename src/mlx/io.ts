// Files of arrays. MLX reads lazily: the bytes of an array are read when it is evaluated.
import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { check, MlxError, ownHandle, takeHandle } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { cText, type Pointer } from "../../ffi/memory.ts";
import { out, Slot } from "../../ffi/slot.ts";
import { takeText, takeTexts } from "../../ffi/text.ts";
import { type MlxArray, make } from "./array.ts";

export type Safetensors = { arrays: Map<string, MlxArray>; metadata: Record<string, string> };

const metadataSlot = new Slot();

export function loadSafetensors(path: string): Safetensors {
  // mlx-c lists a map through a struct that the FFI cannot return, so the names come from the header.
  const { names, metadata } = safetensorsHeader(path);
  const map = onCpu((stream) =>
    takeHandle(
      "mlx_load_safetensors",
      mlxc.mlx_load_safetensors(out.view, metadataSlot.view, cText(path), stream),
    ),
  );
  mlxc.mlx_map_string_to_string_free(metadataSlot.takePointer());
  const symbol = "mlx_map_string_to_array_get";
  const arrays = new Map(
    names.map((name) => [name, make(symbol, mlxc[symbol](out.view, map, cText(name)))]),
  );
  mlxc.mlx_map_string_to_array_free(map);
  return { arrays, metadata };
}

/** Evaluates the arrays and writes them. */
export function saveSafetensors(
  path: string,
  arrays: ReadonlyMap<string, MlxArray>,
  metadata: Readonly<Record<string, string>> = {},
): void {
  const map = ownHandle("mlx_map_string_to_array_new", mlxc.mlx_map_string_to_array_new());
  const texts = ownHandle("mlx_map_string_to_string_new", mlxc.mlx_map_string_to_string_new());
  try {
    for (const [name, array] of arrays) {
      const insert = "mlx_map_string_to_array_insert";
      check(insert, mlxc[insert](map, cText(name), array.handle));
    }
    for (const [key, value] of Object.entries(metadata)) {
      const insert = "mlx_map_string_to_string_insert";
      check(insert, mlxc[insert](texts, cText(key), cText(value)));
    }
    check("mlx_save_safetensors", mlxc.mlx_save_safetensors(cText(path), map, texts));
  } finally {
    mlxc.mlx_map_string_to_array_free(map);
    mlxc.mlx_map_string_to_string_free(texts);
  }
}

/** An open GGUF file: its tensors, as MLX unpacks them, and its metadata. Free it when done. */
export class GgufFile {
  #handle: Pointer | null;

  constructor(path: string) {
    this.#handle = onCpu((stream) =>
      takeHandle("mlx_load_gguf", mlxc.mlx_load_gguf(out.view, cText(path), stream)),
    );
  }

  get names(): string[] {
    return takeTexts(
      takeHandle("mlx_io_gguf_get_keys", mlxc.mlx_io_gguf_get_keys(out.view, this.#handle)),
    );
  }

  array(name: string): MlxArray {
    const symbol = "mlx_io_gguf_get_array";
    found(symbol, name, mlxc[symbol](out.view, this.#handle, cText(name)));
    return make(symbol, 0);
  }

  /** A number or a list of numbers. */
  numbers(key: string): MlxArray {
    const symbol = "mlx_io_gguf_get_metadata_array";
    found(symbol, key, mlxc[symbol](out.view, this.#handle, cText(key)));
    return make(symbol, 0);
  }

  text(key: string): string {
    const symbol = "mlx_io_gguf_get_metadata_string";
    found(symbol, key, mlxc[symbol](out.view, this.#handle, cText(key)));
    return takeText(out.takePointer());
  }

  texts(key: string): string[] {
    const symbol = "mlx_io_gguf_get_metadata_vector_string";
    found(symbol, key, mlxc[symbol](out.view, this.#handle, cText(key)));
    return takeTexts(out.takePointer());
  }

  free(): void {
    mlxc.mlx_io_gguf_free(this.#handle);
    this.#handle = null;
  }

  [Symbol.dispose](): void {
    this.free();
  }
}

/** mlx-c says with 2 and 3, and without a message, that a key is absent or of another type. */
function found(
  symbol: `mlx_io_gguf_get_${"array" | `metadata_${"array" | "string" | "vector_string"}`}`,
  key: string,
  status: number,
): void {
  const op = symbol.replace("mlx_", "");
  if (status === 2) throw new MlxError(op, `the file has no ${key}`);
  if (status === 3) throw new MlxError(op, `${key} has another type`);
  check(symbol, status);
}

/** Files are read on a CPU stream, whatever the device. */
function onCpu<T>(load: (stream: Pointer) => T): T {
  const stream = ownHandle("mlx_default_cpu_stream_new", mlxc.mlx_default_cpu_stream_new());
  try {
    return load(stream);
  } finally {
    mlxc.mlx_stream_free(stream);
  }
}

function safetensorsHeader(path: string): { names: string[]; metadata: Record<string, string> } {
  const file = openSync(path, "r");
  try {
    const length = new DataView(new ArrayBuffer(8));
    readSync(file, length, 0, 8, 0);
    const bytes = Number(length.getBigUint64(0, true));
    if (bytes > fstatSync(file).size)
      throw new MlxError("load_safetensors", "not a safetensors file");
    const header = new Uint8Array(bytes);
    readSync(file, header, 0, bytes, 8);
    const { __metadata__: metadata = {}, ...tensors } = JSON.parse(
      new TextDecoder().decode(header),
    );
    return { names: Object.keys(tensors), metadata };
  } finally {
    closeSync(file);
  }
}
