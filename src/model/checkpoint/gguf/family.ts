// Describes how llama.cpp's converter writes a family's files. What a family leaves out is as for Llama.
import type { Gguf } from "../../../files/gguf.ts";

/** Reads metadata whose keys have the architecture's prefix. */
export type GgufValues = {
  architecture: string;
  modelType: string;
  optional(key: string): number | undefined;
  required(key: string): number;
  /** Reads a list with one number per layer. */
  list(key: string): number[];
};

export type GgufFamily = {
  /** Value of Hugging Face's model_type. */
  modelType: string;
  /** Further model types that `config` may return; their tensors have the same names. */
  others?: readonly string[];
  /** Names of tensors in a layer -> Hugging Face's, if they differ from the common ones. */
  names?: Readonly<Record<string, string>>;
  /** Names of tensors outside of layers -> Hugging Face's. */
  outside?: Readonly<Record<string, string>>;
  /** Whether rows of queries and keys are stored as pairs, for interleaved RoPE. */
  isPaired?: boolean;
  /** Whether value heads of delta nets are interleaved: the first of each key head, then the second of each. */
  isTiled?: boolean;
  /** Whether heads and widths differ by layer. The configuration then gets the maximum. */
  isUneven?: boolean;
  /** Every n-th layer has no window. */
  windowPeriod?: number;
  /** Returns additional configuration keys. */
  config?: (values: GgufValues, gguf: Gguf) => Readonly<Record<string, unknown>>;
};
