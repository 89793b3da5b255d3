// Whole folders of other tools: a model computes with them what it computes with the same numbers in float32, and
// takes little more memory to load than its weights.
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { LoadError } from "../../../src/files/load-error.ts";
import { array, liveArrays } from "../../../src/mlx/array.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { type LoadOptions, loadModel } from "../../../src/model/load.ts";
import { ContiguousKv, contiguousStep } from "../../support/contiguous-kv.ts";
import { deviceOf } from "../../support/devices.ts";
import { expectLittle } from "../../support/little-memory.ts";
import { useMlx } from "../../support/mlx.ts";
import { folderFormats, quantizedLlama } from "../../support/quantized-folder.ts";
import {
  type FileTensor,
  type FileTensors,
  f16,
  llamaShapes,
  tinyConfig,
  tinyTensors,
  writeFolder,
} from "../../support/safetensors-file.ts";
import { temporaryFolder } from "../../support/temporary-folder.ts";

useMlx();
const root = temporaryFolder();

let folders = 0;
const newFolder = () => join(root, String(folders++));

function logits(path: string, options: Partial<LoadOptions> = {}): number[] {
  const prompt = [3, 1, 4, 15, 9, 26, 5, 35, 8, 9, 7, 9];
  const model = loadModel(path, { device: deviceOf("cpu"), ...options });
  using _ = new Scope();
  const kv = new ContiguousKv();
  const step = contiguousStep([{ kv, count: prompt.length }]);
  const found = model.logits(model.forward(array(Int32Array.from(prompt)), step)).numbers();
  kv.free();
  model.free();
  return found;
}

/** The largest difference, over the largest logit. */
function distance(found: readonly number[], expected: readonly number[]): number {
  const largest = Math.max(...expected.map(Math.abs));
  return Math.max(...found.map((value, i) => Math.abs(value - expected[i]!))) / largest;
}

describe.each(Object.keys(folderFormats))("a folder of %s", (name) => {
  const { config, tensors, numbers } = quantizedLlama(folderFormats[name]!);
  const path = writeFolder(newFolder(), config, tensors, 2);

  test("computes what the same numbers compute in float32", () => {
    const expected = logits(writeFolder(newFolder(), tinyConfig, numbers));
    expect(distance(logits(path), expected)).toBeLessThan(1e-5);
    const asGpu = logits(path, { device: deviceOf("metal"), dtype: "float32" });
    expect(distance(asGpu, expected)).toBeLessThan(1e-5);
  });

  test("leaves nothing behind", () => {
    const before = liveArrays();
    logits(path);
    expect(liveArrays()).toBe(before);
  });
});

describe("a folder is refused", () => {
  test("that an unknown tool has quantized", () => {
    const refused: [unknown, string][] = [
      ["bits\nandbytes", '"bits\\nandbytes" is not supported; there are awq, '],
      [4, "quant_method number is not supported"],
      ["constructor", '"constructor" is not supported'],
    ];
    for (const [quant_method, message] of refused) {
      const config = { ...tinyConfig, quantization_config: { quant_method } };
      const path = writeFolder(newFolder(), config, tinyTensors());
      expect(() => logits(path)).toThrow(LoadError);
      expect(() => logits(path)).toThrow(message);
    }
  });

  test("but for MLX's own, which says the same twice", () => {
    const quantization = { group_size: 64, bits: 4 };
    const config = { ...tinyConfig, quantization, quantization_config: quantization };
    expect(logits(writeFolder(newFolder(), config, tinyTensors()))).toBeArray();
  });
});

describe("loading takes little more memory than the weights", () => {
  const config = {
    ...tinyConfig,
    hidden_size: 1024,
    intermediate_size: 4096,
    num_hidden_layers: 8,
    num_attention_heads: 8,
    num_key_value_heads: 8,
  };
  const matrices = 8 * (4 * 1024 * 1024 + 3 * 1024 * 4096);
  const others = 2 * 80 * 1024 + 17 * 1024;

  /** The weights are all the same: only how they are loaded counts. */
  const words = (...shape: number[]): FileTensor => {
    const data = () => new Int32Array(shape.reduce((a, b) => a * b)).fill(0x12345678);
    return { dtype: "I32", shape, data };
  };
  const bytes = (dtype: FileTensor["dtype"], ...shape: number[]): FileTensor => {
    return { dtype, shape, data: () => new Uint8Array(shape.reduce((a, b) => a * b)).fill(0x51) };
  };
  const halves = (...shape: number[]) =>
    f16(shape, new Float32Array(shape.reduce((a, b) => a * b)).fill(0.01));

  /** By quant_method: the tensors of a matrix, and the bytes of a weight when it is loaded. */
  const layouts: Record<string, [number, (rows: number, columns: number) => FileTensors]> = {
    gptq: [
      0.5 + 8 / 128,
      (rows, columns) => ({
        qweight: words(columns / 8, rows),
        qzeros: words(columns / 128, rows / 8),
        scales: halves(columns / 128, rows),
      }),
    ],
    awq: [
      0.5 + 8 / 128,
      (rows, columns) => ({
        qweight: words(columns, rows / 8),
        qzeros: words(columns / 128, rows / 8),
        scales: halves(columns / 128, rows),
      }),
    ],
    "compressed-tensors": [
      1 + 8 / 128,
      (rows, columns) => ({ weight: bytes("I8", rows, columns), weight_scale: halves(rows, 1) }),
    ],
    fp8: [
      4,
      (rows, columns) => ({
        weight: bytes("F8_E4M3", rows, columns),
        weight_scale_inv: halves(rows / 128, columns / 128),
      }),
    ],
    bitnet: [
      0.5 + 8 / 128,
      (rows, columns) => ({ weight: bytes("U8", rows / 4, columns), weight_scale: halves(1) }),
    ],
  };

  test.each(Object.keys(layouts))(
    "from a folder of %s",
    async (quant_method) => {
      const [perWeight, layout] = layouts[quant_method]!;
      const tensors: FileTensors = {};
      for (const [name, shape] of llamaShapes(config)) {
        const [rows, columns] = shape as [number, number];
        if (!name.includes("_proj")) tensors[name] = halves(...shape);
        else {
          const stem = name.replace(/\.weight$/, "");
          for (const [kind, tensor] of Object.entries(layout(rows, columns))) {
            tensors[`${stem}.${kind}`] = tensor;
          }
        }
      }
      const quantized = { ...config, quantization_config: { quant_method } };
      const { weightBytes } = await expectLittle(writeFolder(newFolder(), quantized, tensors));
      expect(weightBytes).toBe(matrices * perWeight + 4 * others);
    },
    60_000,
  );
});
