// A tensor of a file, read on demand.
import type { GgufType } from "../../../files/gguf.ts";
import type { SafetensorsDtype } from "../../../files/safetensors.ts";

export type StoredTensor = {
  name: string;
  shape: readonly number[];
  format: GgufType | SafetensorsDtype;
  bytes: number;
  /** Reads the tensor's bytes from this offset on. */
  read(offset: number, target: Uint8Array): void;
  /** Row of the file -> row of the tensor, if they differ. */
  rowOrder?: ((row: number) => number) | undefined;
};
