// Converts GPTQ, as AutoGPTQ and GPTQModel write it: `qweight` (inputs * bits / 32, outputs) packs inputs, `qzeros`
// (groups, outputs * bits / 32) packs outputs. The words of `qweight` equal those of MLX's rows and are only
// transposed. With act-order (`g_idx`), groups are not contiguous, and columns are sorted by group.
import { z } from "zod";
import { LoadError, quoted } from "../../../files/load-error.ts";
import type { StoredTensor } from "../stored/tensor.ts";
import { type AffineSource, affineTensors, groupsOf, orderedTensors } from "./affine.ts";
import { bandOf, columnNumbers, computedWords, fieldAt, Scratch, wordsOf } from "./computed.ts";
import {
  expectTensor,
  expectWords,
  required,
  stemsOf,
  type Tensors,
  takeFrom,
} from "./folder-tensors.ts";

export const GptqConfig = z.looseObject({
  /** Version of the format: before "gptq_v2", zero points are stored minus 1. */
  checkpoint_format: z.string().nullish(),
});
type GptqConfig = z.infer<typeof GptqConfig>;

/** Offset to add to a stored zero point, by format. */
const zeroOffsets = new Map([
  ["gptq", 1],
  ["gptq_v2", 0],
]);

export function gptq({ checkpoint_format }: GptqConfig, tensors: Tensors): void {
  const format = checkpoint_format ?? "gptq";
  const zeroOffset = zeroOffsets.get(format);
  if (zeroOffset === undefined) {
    const known = [...zeroOffsets.keys()].join(", ");
    throw new LoadError(
      `config.json: quantization_config.checkpoint_format ${quoted(format)} is not supported; there are ${known}`,
    );
  }
  for (const name of stemsOf(tensors, "qweight")) {
    for (const made of matrix(name, tensors, zeroOffset)) tensors.set(made.name, made);
  }
}

function matrix(name: string, tensors: Tensors, zeroOffset: number): StoredTensor[] {
  const packed = required(tensors, `${name}.qweight`);
  const packedZeros = required(tensors, `${name}.qzeros`);
  const stored = required(tensors, `${name}.scales`);
  const order = takeFrom(tensors, `${name}.g_idx`);
  expectWords(packed);
  expectWords(packedZeros);
  const [words, outputs] = packed.shape as [number, number];
  const [groups, zeroWords] = packedZeros.shape as [number, number];
  const bits = (zeroWords * 32) / outputs;
  const inputs = (words * 32) / bits;
  if (![2, 3, 4, 8].includes(bits) || !Number.isInteger(inputs) || inputs % groups !== 0) {
    throw new LoadError(
      `${name}: qweight (${packed.shape}) and qzeros (${packedZeros.shape}) do not fit 2, 3, 4 or 8 bits`,
    );
  }
  expectTensor(stored, [groups, outputs], ["F16", "BF16", "F32"]);
  const source: AffineSource = {
    name,
    outputs,
    inputs,
    groups,
    bits,
    weight: transposed(packed),
    scales: (first, count) => columnNumbers(stored, first, count),
    zeros: (first, count) => zerosOf(packedZeros, bits, zeroOffset, first, count),
  };
  const groupOf = order && groupsOf(order, inputs, groups);
  if (!groupOf) return affineTensors(source);
  const wordsOfRow = (row: number, target: Uint32Array) => {
    const band = bandOf(packed, row, 1);
    for (let word = 0; word < words; word++) {
      target[word] = band.words[word * band.count + row - band.first]!;
    }
  };
  return orderedTensors(source, groupOf, wordsOfRow);
}

/** Transposes (words, outputs) to (outputs, words). */
function transposed(packed: StoredTensor): StoredTensor {
  const [words, outputs] = packed.shape as [number, number];
  return computedWords({
    name: packed.name,
    shape: [outputs, words],
    fill: (target, first, count) => {
      const band = bandOf(packed, first, count);
      // Writes few rows at a time, so that they stay in the CPU's cache.
      for (let from = 0; from < count; from += 16) {
        const to = Math.min(count, from + 16);
        for (let word = 0; word < words; word++) {
          const line = word * band.count + first - band.first;
          for (let row = from; row < to; row++)
            target[row * words + word] = band.words[line + row]!;
        }
      }
    },
  });
}

const zeroWordsRead = new Scratch();
const zeroNumbers = new Scratch();

/** Reads the zero points of `count` outputs: (count, groups). */
function zerosOf(
  packed: StoredTensor,
  bits: number,
  offset: number,
  first: number,
  count: number,
): Float32Array {
  const [groups, perGroup] = packed.shape as [number, number];
  const words = wordsOf(packed, zeroWordsRead);
  const zeros = zeroNumbers.numbers(count * groups);
  const mask = 2 ** bits - 1;
  for (let group = 0; group < groups; group++) {
    for (let i = 0; i < count; i++) {
      const field = fieldAt(words, group * perGroup, first + i, bits);
      // The sum wraps around, because a zero point of 0 was stored as the maximum.
      zeros[i * groups + group] = (field + offset) & mask;
    }
  }
  return zeros;
}
