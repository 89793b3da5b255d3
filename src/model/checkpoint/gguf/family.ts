// How llama.cpp's converter writes a family's files. What a family does not say is as in Llama.
import type { Gguf } from "../../../files/gguf.ts";

/** The numbers whose keys begin with the architecture's name. */
export type GgufValues = {
  architecture: string;
  modelType: string;
  optional(key: string): number | undefined;
  required(key: string): number;
  /** A number for each layer. */
  list(key: string): number[];
};

export type GgufFamily = {
  /** The model_type of Hugging Face. */
  modelType: string;
  /** What `config` may say it is instead, with the same names. */
  others?: readonly string[];
  /** Names in a block -> Hugging Face's, where they differ from the usual. */
  names?: Readonly<Record<string, string>>;
  /** The same outside of blocks. */
  outside?: Readonly<Record<string, string>>;
  /** Rows of queries and keys stand in pairs. */
  isPaired?: boolean;
  /** Heads of values in delta nets stand in turn: the first of each key head, then the second of each. */
  isTiled?: boolean;
  /** Heads and widths differ from layer to layer: the configuration says those of the largest. */
  isUneven?: boolean;
  /** Of so many layers, the last attends to everything. */
  windowPeriod?: number;
  /** Keys of the configuration beside the usual. */
  config?: (values: GgufValues, gguf: Gguf) => Readonly<Record<string, unknown>>;
};
