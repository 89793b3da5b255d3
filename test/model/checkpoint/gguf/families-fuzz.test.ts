// Hundreds of GGUF files whose metadata does not fit their tensors, the same in every run: each is refused by a LoadError
// of one line, or loaded as far as tensors tell.
import { expect, test } from "bun:test";
import { join } from "node:path";
import type { Device } from "../../../../src/device/device.ts";
import { LoadError } from "../../../../src/files/load-error.ts";
import { loadModel } from "../../../../src/model/load.ts";
import { deviceOf } from "../../../support/devices.ts";
import { type GgufFile, writeGguf } from "../../../support/gguf-file.ts";
import { layered } from "../../../support/gguf-layered.ts";
import { recurrent } from "../../../support/gguf-recurrent.ts";
import { tinyGguf } from "../../../support/gguf-tiny.ts";
import { useMlx } from "../../../support/mlx.ts";
import { temporaryFolder } from "../../../support/temporary-folder.ts";

useMlx();

const folder = temporaryFolder();

type Value = GgufFile["metadata"][string] | undefined;

/** In place of what a key says; undefined for no such key. */
const others: readonly Value[] = [
  undefined,
  0,
  3,
  2 ** 31,
  0.3,
  "seven",
  true,
  Int32Array.of(),
  Int32Array.of(1, -2, 3),
  Float32Array.of(NaN),
];

/** Of every second key one of the values, and the next for the next key. */
function* changed(): Generator<{ what: string; file: GgufFile }> {
  let turn = 0;
  for (const [at, name] of Object.keys({ ...layered, ...recurrent }).entries()) {
    const file = tinyGguf(name);
    for (const key of Object.keys(file.metadata).filter((_, i) => i % 2 === at % 2)) {
      const value = others[turn++ % others.length];
      const { [key]: _, ...rest } = file.metadata;
      const metadata = value === undefined ? rest : { ...rest, [key]: value };
      yield { what: `${name}: ${key} is ${value}`, file: { ...file, metadata } };
    }
  }
}

test("metadata that does not fit is refused in one line", () => {
  const device: Device = { ...deviceOf("cpu"), isSketch: true };
  const path = join(folder, "model.gguf");
  const counts = { loaded: 0, refused: 0 };
  for (const { what, file } of changed()) {
    writeGguf(path, file);
    try {
      loadModel(path, { device, dtype: "float32" }).free();
      counts.loaded++;
    } catch (error) {
      if (!(error instanceof LoadError) || error.message.includes("\n")) {
        throw new Error(what, { cause: error });
      }
      counts.refused++;
    }
  }
  expect(counts.refused).toBeGreaterThan(150);
}, 60_000);
