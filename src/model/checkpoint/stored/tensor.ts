// Declares a tensor of a file, read on demand.
import type { GgufType } from "../../../files/gguf.ts";
import type { SafetensorsDtype } from "../../../files/safetensors.ts";

export type StoredTensor = {
  name: string;
  shape: readonly number[];
  format: GgufType | SafetensorsDtype;
  bytes: number;
  /** Reads bytes of the tensor, from this offset on, to fill `target`. */
  read(offset: number, target: Uint8Array): void;
  /** Maps a row of the file to a row of the tensor, if rows are reordered. */
  rowOrder?: ((row: number) => number) | undefined;
};
