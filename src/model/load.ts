// Loads a model: opens its files, builds its architecture, loads its weights.
import { join } from "node:path";
import type { FloatType } from "../device/device.ts";
import { readJson } from "../files/json.ts";
import { type Checkpoint, openCheckpoint } from "./checkpoint/checkpoint.ts";
import type { Model } from "./contract/model.ts";
import { architectureOf } from "./registry.ts";
import { type WeightOptions, Weights } from "./weights/weights.ts";

export type LoadOptions = WeightOptions & {
  /** Function that is called after each read of at most a few megabytes. */
  onRead?: (() => void) | undefined;
};

export type LoadedModel = Model & { dtype: FloatType; weightBytes: number; free(): void };

/** Loads a model. `path` is a folder or a GGUF file. */
export function loadModel(path: string, options: LoadOptions): LoadedModel {
  // Checks the architecture first, so that an unknown one is reported before missing weights.
  if (!path.endsWith(".gguf")) architectureOf(readJson(join(path, "config.json")).model_type);
  const checkpoint = openCheckpoint(path);
  const { onRead } = options;
  const weights = new Weights(onRead ? watched(checkpoint, onRead) : checkpoint, options);
  try {
    const architecture = architectureOf(checkpoint.config.model_type);
    const model = architecture(checkpoint.config, weights);
    const { dtype, arrays } = weights;
    return { ...model, dtype, weightBytes: arrays.bytes, free: () => arrays.free() };
  } catch (error) {
    weights.arrays.free();
    throw error;
  } finally {
    checkpoint.close();
  }
}

function watched(checkpoint: Checkpoint, onRead: () => void): Checkpoint {
  const tensors = new Map(checkpoint.tensors);
  for (const [name, stored] of tensors) {
    const read = (offset: number, target: Uint8Array) => {
      stored.read(offset, target);
      onRead();
    };
    tensors.set(name, { ...stored, read });
  }
  return { ...checkpoint, tensors };
}
