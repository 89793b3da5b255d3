// The models that the self-test carries are those of the goldens, and are written as the tests write them.
import { expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chosenModels } from "../../scripts/goldens/self-test.ts";
import { array } from "../../src/mlx/array.ts";
import { quantize } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { tinyModels, writeTinyModel } from "../../src/self-test/tiny-models.ts";
import { affineQuantized, uniform } from "../../src/self-test/tiny-weights.ts";
import { onCpu, useMlx } from "../support/mlx.ts";
import { tinyCase, writeTinyModel as writeTinyCase } from "../support/tiny-models.ts";

useMlx();

test("models.json has what test/golden/models has", () => {
  expect(tinyModels.length).toBeGreaterThan(10);
  expect(tinyModels).toEqual(JSON.parse(JSON.stringify(chosenModels())));
});

test.each([
  ["llama", "llama"],
  // Experts are stacked in both.
  ["qwen3_moe-separate-q4", "qwen3_moe-separate-q4"],
  ["llama-q4", "llama-q4"],
  ["qwen3_next", "qwen3_next"],
])("%s has the files that its test has", (name, test) => {
  const [own, expected] = [1, 2].map(() => mkdtempSync(join(tmpdir(), "tiny-"))) as [
    string,
    string,
  ];
  writeTinyModel(own, tinyModels.find((model) => model.name === name)!);
  writeTinyCase(expected, tinyCase(test));
  for (const file of ["config.json", "model.safetensors"]) {
    const [a, b] = [own, expected].map((folder) => readFileSync(join(folder, file)));
    expect(a!.equals(b!)).toBe(true);
  }
  for (const folder of [own, expected]) rmSync(folder, { recursive: true });
});

test.each([
  [4, 32],
  [8, 64],
])("matrices of %i bits in groups of %i are quantized as MLX does it", (bits, groupSize) => {
  using _ = new Scope();
  const values = uniform("quantized", 64 * 128);
  // A group of zeros, and one without negative numbers.
  values.fill(0, 0, groupSize);
  values.subarray(groupSize, 2 * groupSize).forEach((x, i, all) => {
    all[i] = Math.abs(x);
  });
  const { packed, scales, biases } = affineQuantized(values, groupSize, bits);
  const made = onCpu(() => {
    const parts = quantize(array(values, [64, 128]), { bits, groupSize });
    return [parts.weight, parts.scales, parts.biases!].map((part) => part.data());
  });
  expect<unknown[]>([packed, scales, biases]).toEqual(made);
});
