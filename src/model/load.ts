// Loads a model: files, weights, architecture.
import { join } from "node:path";
import type { Device, FloatType } from "../device/device.ts";
import { readJson } from "../files/json.ts";
import type { Group } from "../mlx/distributed.ts";
import { type Checkpoint, openCheckpoint } from "./checkpoint/checkpoint.ts";
import type { Model } from "./contract/model.ts";
import { architectureOf } from "./registry.ts";
import type { LayerSplit } from "./weights/stages.ts";
import { type Parallel, type WeightOptions, Weights } from "./weights/weights.ts";

export type LoadOptions = {
  device: Device;
  dtype?: FloatType | undefined;
  keepDequantized?: boolean | undefined;
  /** Ranks that the model is divided among; each loads its part. */
  group?: Group | undefined;
  parallel?: Parallel | undefined;
  /** Which layers each rank has, if ranks divide the model by layers. */
  layers?: LayerSplit | undefined;
  windows?: WeightOptions["windows"];
  onProgress?: ((loadedBytes: number, totalBytes: number) => void) | undefined;
  /** Called after every few megabytes read from files. */
  onRead?: (() => void) | undefined;
};

export type LoadedModel = Model & {
  dtype: FloatType;
  weightBytes: number;
  free(): void;
};

/** Loads a folder or a GGUF file. */
export function loadModel(path: string, options: LoadOptions): LoadedModel {
  // Checked before the weights, which may be missing or useless.
  if (!path.endsWith(".gguf")) architectureOf(readJson(join(path, "config.json")).model_type);
  const checkpoint = openCheckpoint(path);
  const { onRead } = options;
  const weights = new Weights(onRead ? watched(checkpoint, onRead) : checkpoint, options);
  try {
    const architecture = architectureOf(checkpoint.config.model_type);
    const model = architecture(checkpoint.config, weights);
    const { dtype, bytes: weightBytes } = weights;
    return { ...model, dtype, weightBytes, free: () => weights.free() };
  } catch (error) {
    weights.free();
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
