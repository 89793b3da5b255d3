// Hundreds of folders of other tools that are broken, the same in every run: a tensor is missing, has another shape or
// another type, or the configuration says something else. Each is refused by a LoadError of one line, and leaves
// nothing behind.
import { expect, test } from "bun:test";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { LoadError } from "../../../src/files/load-error.ts";
import { liveArrays } from "../../../src/mlx/array.ts";
import { activeMemory } from "../../../src/mlx/memory.ts";
import { loadModel } from "../../../src/model/load.ts";
import { deviceOf } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";
import { folderFormats, quantizedLlama } from "../../support/quantized-folder.ts";
import { type FileTensor, type FileTensors, writeFolder } from "../../support/safetensors-file.ts";
import { temporaryFolder } from "../../support/temporary-folder.ts";

useMlx();
const root = temporaryFolder();

type Folder = { config: Record<string, unknown>; tensors: FileTensors };
type Case = { what: string; folder: Folder };

/** A model can do without them: they say what is so anyway, or what is not computed. */
const optional = ["g_idx", "input_scale"];

/** Nothing divides into seven parts here. */
const otherShapes: ((shape: readonly number[]) => number[])[] = [
  () => [7],
  () => [],
  (shape) => [...shape, 7],
  (shape) => shape.map(() => 0),
  (shape) => shape.with(0, 7),
  (shape) => shape.with(-1, 7),
  (shape) => shape.with(0, shape[0]! + 1),
  (shape) => shape.with(-1, 7 * shape.at(-1)!),
];

type Sizes = Partial<Record<FileTensor["dtype"], number>>;
const bytesOf: Sizes = { I32: 4, U32: 4, F32: 4, I64: 8, F16: 2, BF16: 2 };

/** Zeros, as many as the shape wants. */
function zeros(dtype: FileTensor["dtype"], shape: readonly number[]): FileTensor {
  const size = shape.reduce((a, b) => a * b, bytesOf[dtype] ?? 1);
  return { dtype, shape, data: new Uint8Array(size) };
}

/** Of one matrix: each of its tensors missing, in other shapes, and of other types. */
function* otherTensors(name: string, { config, tensors }: Folder): Generator<Case> {
  const stem = "model.layers.1.mlp.down_proj.";
  for (const [key, tensor] of Object.entries(tensors)) {
    const kind = key.slice(stem.length);
    if (!key.startsWith(stem) || optional.includes(kind)) continue;
    const { [key]: _, ...others } = tensors;
    const changed = (what: string, other: FileTensor): Case => {
      return {
        what: `${name}: ${kind} ${what}`,
        folder: { config, tensors: { ...others, [key]: other } },
      };
    };
    yield { what: `${name}: no ${kind}`, folder: { config, tensors: others } };
    for (const reshape of otherShapes) {
      const shape = reshape(tensor.shape);
      // One scale for all may be written in more ways than one.
      const isSame =
        shape.join() === tensor.shape.join() || (shape.length === 0 && kind.includes("scale"));
      if (!isSame) yield changed(`of (${shape})`, zeros(tensor.dtype, shape));
    }
    for (const dtype of ["I64", "U8", "F16", "F8_E5M2"] as const) {
      const isNumber = dtype === "F16" && ["F32", "F16"].includes(tensor.dtype);
      const isFloat = dtype === "F8_E5M2" && ["F8_E4M3", "I8"].includes(tensor.dtype);
      // Exponents alone are scales too; and the shape of a matrix may be in either type.
      const isScale = ["U8", "F8_E5M2"].includes(dtype) && kind.includes("scale_inv");
      if (isNumber || isFloat || isScale || dtype === tensor.dtype) continue;
      yield changed(`of ${dtype}`, zeros(dtype, tensor.shape));
    }
  }
}

/** The tensors of a format, and what the configuration says of another. */
function* otherMethods(name: string, { config, tensors }: Folder): Generator<Case> {
  const own = (config.quantization_config as { quant_method: string }).quant_method;
  for (const { config: other } of Object.values(folderFormats)) {
    if (other.quant_method === own) continue;
    yield {
      what: `${name} as ${JSON.stringify(other)}`,
      folder: { config: { ...config, quantization_config: other }, tensors },
    };
  }
}

const unknown = ["GPTQ", "bitsandbytes", "hqq", "__proto__"];
const wrongMethods = [null, true, 4, "", [], {}, ["gptq"], ...unknown];

/** By quant_method, what the configuration may not say. */
const wrongFields: Record<string, Record<string, unknown>[]> = {
  gptq: ["marlin", 2, [], {}, "__proto__"].map((value) => ({ checkpoint_format: value })),
  awq: ["gemv", "gemv_fast", "marlin", 1, [], {}].map((value) => ({ version: value })),
  fp8: [128, "128", [], [128], [0, 128], [128, -1], [1.5, 2], [128, 128, 128], {}].map((value) => ({
    weight_block_size: value,
  })),
  "compressed-tensors": [
    ...["marlin-24", "sparse-bitmask", "sparse-24-bitmask", "mxfp6-pack-quantized", 4, [], {}].map(
      (value) => ({ format: value }),
    ),
    ...[[], 4, "x", { a: 4 }, { a: { weights: 4 } }, { a: { format: "marlin-24" } }].map(
      (value) => ({ config_groups: value }),
    ),
    ...[[], [8], [0, 8], ["8", "8"]].map((value) => ({
      config_groups: { a: { weights: { block_structure: value } } },
    })),
    ...[4, [], { config_groups: { a: {} } }].map((value) => ({ transform_config: value })),
  ],
  bitnet: [
    ...["linear", 1, []].map((value) => ({ linear_class: value })),
    ...["online", 1, {}].map((value) => ({ quantization_mode: value })),
  ],
};

function* otherConfigs(name: string, { config, tensors }: Folder): Generator<Case> {
  const own = config.quantization_config as { quant_method: string };
  const wrong = [
    ...wrongMethods.map((quant_method) => ({ quant_method })),
    ...wrongFields[own.quant_method]!,
  ];
  for (const fields of wrong) {
    const quantization_config = { ...own, ...fields };
    const what = `${name} with ${JSON.stringify(fields)}`;
    yield { what, folder: { config: { ...config, quantization_config }, tensors } };
    // Where a model also sees, its text has a configuration of its own.
    const { quantization_config: _, ...rest } = config;
    const text_config = { quantization_config };
    yield { what: `${what}, of its text`, folder: { config: { ...rest, text_config }, tensors } };
  }
}

/** What became of it, where it is not a LoadError of one line that leaves nothing behind. */
function outcome({ config, tensors }: Folder): string {
  const openFiles = () =>
    existsSync("/proc/self/fd") ? readdirSync("/proc/self/fd").length : undefined;
  const state = () => [liveArrays(), activeMemory(), openFiles()].join();
  const path = writeFolder(join(root, "folder"), config, tensors);
  const before = state();
  try {
    loadModel(path, { device: deviceOf("cpu") }).free();
    return "was loaded";
  } catch (error) {
    if (!(error instanceof LoadError)) return String(error);
    if (/[\n\r]/.test(error.message)) return "took several lines";
    return state() === before ? "refused" : "left something behind";
  }
}

test.each(Object.keys(folderFormats))("folders of %s that are broken are refused", (name) => {
  const folder = quantizedLlama(folderFormats[name]!) as Folder;
  expect(outcome(folder)).toBe("was loaded");
  const cases = [otherTensors, otherMethods, otherConfigs].flatMap((make) => [
    ...make(name, folder),
  ]);
  expect(cases.length).toBeGreaterThan(40);
  const accepted = cases
    .map(({ what, folder }) => `${what}: ${outcome(folder)}`)
    .filter((line) => !line.endsWith(": refused"));
  expect(accepted).toEqual([]);
});
