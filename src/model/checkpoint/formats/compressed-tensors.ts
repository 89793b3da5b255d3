// Converts compressed-tensors, as llm-compressor writes it for vLLM. The tensors of a matrix determine its format:
// `weight_packed` has packed integers or pairs of 4-bit floats, `weight` has 8-bit integers or floats. `weight_scale`
// has a scale per group, row or matrix; asymmetric formats add `weight_zero_point`.
import { z } from "zod";
import { LoadError, quoted } from "../../../files/load-error.ts";
import type { StoredTensor } from "../stored/tensor.ts";
import { type AffineSource, affineTensors, groupsOf, orderedTensors } from "./affine.ts";
import { computedWords, fieldAt, readNumbers, Scratch, wordsOf } from "./computed.ts";
import { byteFloats, isMx, mxTensors, scaledPairs } from "./floats.ts";
import {
  dropActivationScales,
  expectTensor,
  required,
  stemsOf,
  type Tensors,
  takeFrom,
} from "./folder-tensors.ts";
import { matrix as floatMatrix } from "./fp8.ts";

const side = z.int().positive();

/** Parses "128x128", as earlier versions wrote the block size [128, 128]. */
const sides = (value: unknown) =>
  typeof value === "string" ? value.split("x").map(Number) : value;
const BlockStructure = z.preprocess(sides, z.tuple([side, side]).nullish());

const Group = z.looseObject({
  format: z.string().nullish(),
  weights: z.looseObject({ block_structure: BlockStructure.optional() }).nullish(),
});

export const CompressedTensorsConfig = z.looseObject({
  format: z.string().nullish(),
  config_groups: z.record(z.string(), Group).nullish(),
  /** Rotations of activations at runtime, which are not supported. */
  transform_config: z.looseObject({ config_groups: z.looseObject({}).nullish() }).nullish(),
});
type CompressedTensorsConfig = z.infer<typeof CompressedTensorsConfig>;

/** Formats that we support. The others use the same tensor names for other layouts. */
const formats = [
  "dense",
  "naive-quantized",
  "int-quantized",
  "float-quantized",
  "pack-quantized",
  "mxfp4-pack-quantized",
  "mxfp8-quantized",
  "nvfp4-pack-quantized",
  "mixed-precision",
];

export function compressedTensors(config: CompressedTensorsConfig, tensors: Tensors): void {
  const groups = Object.values(config.config_groups ?? {});
  for (const format of [config.format, ...groups.map((group) => group.format)]) {
    if (!format || formats.includes(format)) continue;
    throw new LoadError(
      `config.json: quantization_config.format ${quoted(format)} is not supported; there are ${formats.join(", ")}`,
    );
  }
  if (Object.keys(config.transform_config?.config_groups ?? {}).length > 0) {
    throw new LoadError("config.json: quantization_config.transform_config is not supported");
  }
  dropActivationScales(tensors);
  const block = groups.map(({ weights }) => weights?.block_structure).find(Boolean) ?? undefined;
  for (const name of stemsOf(tensors, "weight_packed")) {
    for (const made of packedMatrix(name, tensors)) tensors.set(made.name, made);
  }
  for (const name of stemsOf(tensors, "weight_scale")) {
    for (const made of plainMatrix(name, tensors, block)) tensors.set(made.name, made);
  }
}

const shapeBytes = new Scratch();

/** Reads the matrix's shape before packing: rows and columns. */
function shapeIn(stored: StoredTensor): [number, number] {
  expectTensor(stored, [2], ["I64", "I32"]);
  const words = wordsOf(stored, shapeBytes);
  const step = words.length / 2;
  return [words[0]!, words[step]!];
}

function packedMatrix(name: string, tensors: Tensors): StoredTensor[] {
  const packed = required(tensors, `${name}.weight_packed`);
  const scale = required(tensors, `${name}.weight_scale`);
  if (packed.format === "U8") return floatPairs(name, packed, scale, tensors);
  const [outputs, inputs] = shapeIn(required(tensors, `${name}.weight_shape`));
  const zeroPoints = takeFrom(tensors, `${name}.weight_zero_point`);
  const order = takeFrom(tensors, `${name}.weight_g_idx`);
  const words = packed.shape.at(-1)!;
  const bits = (words * 32) / inputs;
  if (![2, 3, 4, 5, 6, 8].includes(bits)) {
    throw new LoadError(
      `${packed.name}: ${words} words of ${inputs} inputs do not fit 2 to 6 or 8 bits`,
    );
  }
  expectTensor(packed, [outputs, words], ["I32", "U32"]);
  const source = affineSource(name, { outputs, inputs, bits }, packed, scale, zeroPoints);
  const groupOf = order && groupsOf(order, inputs, source.groups);
  if (!groupOf) return affineTensors(source);
  const wordsOfRow = (row: number, target: Uint32Array) =>
    packed.read(4 * row * words, new Uint8Array(target.buffer, 0, target.byteLength));
  return orderedTensors(source, groupOf, wordsOfRow);
}

/** Describes a matrix of unsigned integers. Without zero points, the middle of their range means 0. */
function affineSource(
  name: string,
  { outputs, inputs, bits }: { outputs: number; inputs: number; bits: number },
  weight: StoredTensor,
  scale: StoredTensor,
  zeroPoints: StoredTensor | undefined,
): AffineSource {
  const isSingle = scale.shape.reduce((a, b) => a * b, 1) === 1;
  const groups = scale.shape.length > 1 ? scale.shape[1]! : 1;
  if (!isSingle) {
    expectTensor(scale, [outputs, groups].slice(0, scale.shape.length), ["F32", "BF16", "F16"]);
  }
  if (groups < 1 || inputs % groups !== 0) {
    throw new LoadError(`${scale.name}: ${inputs} inputs do not fit ${groups} groups`);
  }
  const middle = 2 ** (bits - 1);
  const zeros = zeroPoints && zeroReader(zeroPoints, { outputs, groups, bits });
  return {
    name,
    outputs,
    inputs,
    groups,
    bits,
    weight: { ...weight, format: "U32" },
    scales: (first, count) => {
      const made = scaleNumbers.numbers(count * groups);
      const target = isSingle ? made.subarray(0, 1) : made;
      readNumbers(scale, isSingle ? 0 : first * groups, target, scaleBytes);
      return isSingle ? made.fill(made[0]!) : made;
    },
    zeros: (first, count) =>
      zeros ? zeros(first, count) : zeroNumbers.numbers(count * groups).fill(middle),
  };
}

const scaleNumbers = new Scratch();
const scaleBytes = new Scratch();
const zeroNumbers = new Scratch();
const zeroWords = new Scratch();
const zeroColumn = new Scratch();

/** Returns a reader of zero points. They are 8-bit integers (outputs, groups), or packed along the outputs. */
function zeroReader(
  stored: StoredTensor,
  { outputs, groups, bits }: { outputs: number; groups: number; bits: number },
): AffineSource["zeros"] {
  const middle = 2 ** (bits - 1);
  if (stored.format === "I8") {
    if (stored.bytes !== outputs * groups) expectTensor(stored, [outputs, groups], ["I8"]);
    return (first, count) => {
      const bytes = zeroWords.bytes(count * groups);
      stored.read(first * groups, bytes);
      const zeros = zeroNumbers.numbers(count * groups);
      for (let i = 0; i < zeros.length; i++) zeros[i] = ((bytes[i]! << 24) >> 24) + middle;
      return zeros;
    };
  }
  const lines = Math.ceil((outputs * bits) / 32);
  expectTensor(stored, [lines, groups], ["I32", "U32"]);
  return (first, count) => {
    const words = wordsOf(stored, zeroWords);
    const column = zeroColumn.words(lines);
    const zeros = zeroNumbers.numbers(count * groups);
    for (let group = 0; group < groups; group++) {
      for (let line = 0; line < lines; line++) column[line] = words[line * groups + group]!;
      for (let i = 0; i < count; i++) {
        zeros[i * groups + group] = fieldAt(column, 0, first + i, bits);
      }
    }
    return zeros;
  };
}

/** Converts mxfp4, or nvfp4, which has a further scale for the whole tensor. */
function floatPairs(
  name: string,
  packed: StoredTensor,
  scale: StoredTensor,
  tensors: Tensors,
): StoredTensor[] {
  if (packed.shape.length !== 2) {
    throw new LoadError(`${packed.name}: expected a matrix, found (${packed.shape})`);
  }
  const whole = takeFrom(tensors, `${name}.weight_global_scale`);
  if (!whole && isMx(packed, scale, 2)) return mxTensors(name, packed, scale);
  if (whole?.shape.reduce((a, b) => a * b, 1) === 1) {
    return [scaledPairs(name, packed, scale, whole)];
  }
  throw new LoadError(`${packed.name}: expected the scales of mxfp4 or nvfp4`);
}

function plainMatrix(
  name: string,
  tensors: Tensors,
  block: readonly [number, number] | undefined,
): StoredTensor[] {
  const scale = required(tensors, `${name}.weight_scale`);
  const weight = required(tensors, `${name}.weight`);
  const zeroPoints = takeFrom(tensors, `${name}.weight_zero_point`);
  if (byteFloats.has(weight.format)) return floatMatrix(weight, scale, block);
  if (weight.shape.length !== 2) {
    throw new LoadError(`${weight.name}: expected a matrix, found (${weight.shape})`);
  }
  const [outputs, inputs] = weight.shape as [number, number];
  expectTensor(weight, [outputs, inputs], ["I8"]);
  const sizes = { outputs, inputs, bits: 8 };
  return affineTensors(affineSource(name, sizes, unsigned(weight), scale, zeroPoints));
}

/** Converts signed bytes to MLX's unsigned ones: flipping the sign bit adds 128. */
function unsigned(weight: StoredTensor): StoredTensor {
  const [outputs, inputs] = weight.shape as [number, number];
  return computedWords({
    name: weight.name,
    shape: [outputs, inputs / 4],
    fill: (target, first) => {
      const bytes = new Uint8Array(target.buffer, target.byteOffset, target.byteLength);
      weight.read(first * inputs, bytes);
      for (let i = 0; i < target.length; i++) target[i] = target[i]! ^ 0x80808080;
    },
  });
}
