// A tensor of a file, read when it is needed.
import type { GgufType } from "../../../files/gguf.ts";
import type { SafetensorsDtype } from "../../../files/safetensors.ts";

export type StoredTensor = {
  name: string;
  shape: readonly number[];
  format: GgufType | SafetensorsDtype;
  bytes: number;
  /** Reads the tensor's bytes from this offset on. */
  read(offset: number, target: Uint8Array): void;
  /** Where a row of the file belongs, if not in its own place. */
  rowOrder?: ((row: number) => number) | undefined;
};
