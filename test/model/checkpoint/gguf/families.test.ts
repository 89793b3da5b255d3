// GGUF files of families as llama.cpp's converter writes them: the tiny models of mlx-lm's goldens, under the names that
// gguf-py has for their tensors, with rows in the converter's order, give the same logits.
import { expect, test } from "bun:test";
import { join } from "node:path";
import { array } from "../../../../src/mlx/array.ts";
import { Scope } from "../../../../src/mlx/scope.ts";
import { ggufFamilies } from "../../../../src/model/checkpoint/gguf/families.ts";
import { loadModel } from "../../../../src/model/load.ts";
import { ContiguousKv, contiguousStep } from "../../../support/contiguous-kv.ts";
import { deviceOf } from "../../../support/devices.ts";
import { dequantized, quantize } from "../../../support/gguf-conversion.ts";
import { writeGguf } from "../../../support/gguf-file.ts";
import { families, plain, tinyGguf } from "../../../support/gguf-tiny.ts";
import { useMlx } from "../../../support/mlx.ts";
import { temporaryFolder } from "../../../support/temporary-folder.ts";
import { goldenOf, tinyCase } from "../../../support/tiny-models.ts";

useMlx();

const folder = temporaryFolder();

test("there is a file of every family", () => {
  // Mixtral is written as a Llama with experts.
  const tested = new Set(Object.values(families).map(({ architecture }) => architecture));
  expect(tested).toEqual(new Set([...ggufFamilies.keys(), "llama"]));
});

test.each(Object.keys(families))("%s", (name) => {
  const { last } = goldenOf(tinyCase(name));
  expect(distance(logitsOf(name), last)).toBeLessThan(1e-4);
});

test("rows and columns of quantized matrices are put in order too", () => {
  const [quantized, rounded] = [quantize, dequantized].map((store) => logitsOf("qwen3_5", store));
  expect(distance(quantized!, rounded!)).toBeLessThan(1e-4);
});

/** The logits of the prompt's last token, from a file whose tensors are stored so. */
function logitsOf(name: string, store = plain): number[] {
  const path = writeGguf(join(folder, `${name}.gguf`), tinyGguf(name, store));
  const { prompt, last } = goldenOf(tinyCase(name));
  const model = loadModel(path, { device: deviceOf("cpu"), dtype: "float32" });
  const kv = new ContiguousKv();
  try {
    using _ = new Scope();
    const step = contiguousStep([{ kv, count: prompt.length }]);
    const logits = model.logits(model.forward(array(Int32Array.from(prompt)), step)).numbers();
    return Array.from(logits.slice(-last.length));
  } finally {
    kv.free();
    model.free();
  }
}

function distance(found: readonly number[], expected: readonly number[]): number {
  return Math.max(...found.map((x, i) => Math.abs(x - expected[i]!)));
}
