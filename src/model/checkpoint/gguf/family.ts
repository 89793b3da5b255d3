// How llama.cpp's converter writes a family's files. By default as for Llama.
import type { Gguf } from "../../../files/gguf.ts";

/** Metadata under the architecture's prefix. */
export type GgufValues = {
  architecture: string;
  modelType: string;
  optional(key: string): number | undefined;
  required(key: string): number;
  /** One number per layer. */
  list(key: string): number[];
};

export type GgufFamily = {
  /** Hugging Face's model_type. */
  modelType: string;
  /** Other model types that `config` may set, with the same names. */
  others?: readonly string[];
  /** Names in a block -> Hugging Face's, if they differ from the common ones. */
  names?: Readonly<Record<string, string>>;
  /** The same for names outside of blocks. */
  outside?: Readonly<Record<string, string>>;
  /** Rows of queries and keys are stored as pairs. */
  isPaired?: boolean;
  /** Value heads of delta nets are interleaved: the first of each key head, then the second of each. */
  isTiled?: boolean;
  /** Heads and widths differ by layer: the configuration takes the maximum. */
  isUneven?: boolean;
  /** Period of the layers without a window. */
  windowPeriod?: number;
  /** Additional configuration keys. */
  config?: (values: GgufValues, gguf: Gguf) => Readonly<Record<string, unknown>>;
};
