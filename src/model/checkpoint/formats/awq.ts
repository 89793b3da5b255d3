// Converts AWQ, as AutoAWQ writes it for its GEMM kernels: `qweight` (inputs, outputs / 8) and `qzeros` (groups,
// outputs / 8) pack eight outputs per word, interleaved. MLX packs eight inputs, so 8 x 8 blocks are transposed.
import { z } from "zod";
import { LoadError, quoted } from "../../../files/load-error.ts";
import type { StoredTensor } from "../stored/tensor.ts";
import { affineTensors } from "./affine.ts";
import { bandOf, columnNumbers, computedWords, Scratch, wordsOf } from "./computed.ts";
import { expectTensor, expectWords, required, stemsOf, type Tensors } from "./folder-tensors.ts";

export const AwqConfig = z.looseObject({
  /** Kernels that the weights were packed for. */
  version: z.string().nullish(),
});
type AwqConfig = z.infer<typeof AwqConfig>;

/** `outputOf[i]`: the output (0 to 7) in the i-th 4-bit field of a word, lowest first. `fieldOf`: its inverse. */
const outputOf = [0, 2, 4, 6, 1, 3, 5, 7];
const fieldOf = [0, 4, 1, 5, 2, 6, 3, 7];

export function awq({ version }: AwqConfig, tensors: Tensors): void {
  if (version && version.toLowerCase() !== "gemm") {
    throw new LoadError(
      `config.json: quantization_config.version ${quoted(version)} is not supported; gemm is`,
    );
  }
  for (const name of stemsOf(tensors, "qweight")) {
    for (const made of matrix(name, tensors)) tensors.set(made.name, made);
  }
}

function matrix(name: string, tensors: Tensors): StoredTensor[] {
  const packed = required(tensors, `${name}.qweight`);
  const packedZeros = required(tensors, `${name}.qzeros`);
  const stored = required(tensors, `${name}.scales`);
  expectWords(packed);
  expectWords(packedZeros);
  const [inputs, columns] = packed.shape as [number, number];
  const groups = packedZeros.shape[0]!;
  if (inputs % 8 !== 0 || inputs % groups !== 0) {
    throw new LoadError(`${name}: ${inputs} inputs do not fit ${groups} groups of 4 bits`);
  }
  expectTensor(packedZeros, [groups, columns], ["I32", "U32"]);
  expectTensor(stored, [groups, 8 * columns], ["F16", "BF16", "F32"]);
  return affineTensors({
    name,
    outputs: 8 * columns,
    inputs,
    groups,
    bits: 4,
    weight: transposed(packed),
    scales: (first, count) => columnNumbers(stored, first, count),
    zeros: (first, count) => zerosOf(packedZeros, first, count),
  });
}

const square = new Uint32Array(8);
const eightRows = new Scratch();

/** Transposes 4-bit numbers, eight per word: (inputs, outputs / 8) -> (outputs, inputs / 8). */
function transposed(packed: StoredTensor): StoredTensor {
  const [inputs, columns] = packed.shape as [number, number];
  const words = inputs / 8;
  return computedWords({
    name: packed.name,
    shape: [8 * columns, words],
    fill: (target, first, count) => {
      const [from, to] = [Math.floor(first / 8), Math.ceil((first + count) / 8)];
      const band = bandOf(packed, from, to - from);
      const lines = eightRows.words(8 * words);
      for (let column = from; column < to; column++) {
        for (let word = 0; word < words; word++) {
          const at = 8 * word * band.count + column - band.first;
          for (let i = 0; i < 8; i++) square[i] = band.words[at + i * band.count]!;
          transposeFields(square);
          for (let field = 0; field < 8; field++) lines[field * words + word] = square[field]!;
        }
        for (let field = 0; field < 8; field++) {
          const row = 8 * column + outputOf[field]! - first;
          if (row < 0 || row >= count) continue;
          target.set(lines.subarray(field * words, (field + 1) * words), row * words);
        }
      }
    },
  });
}

/** Transposes eight words of eight fields: swaps field j of word i with field i of word j. */
function transposeFields(square: Uint32Array): void {
  for (let i = 0; i < 4; i++) swapFields(square, i, i + 4, 16, 0x0000ffff);
  for (let i = 0; i < 8; i += i & 1 ? 3 : 1) swapFields(square, i, i + 2, 8, 0x00ff00ff);
  for (let i = 0; i < 8; i += 2) swapFields(square, i, i + 1, 4, 0x0f0f0f0f);
}

/** Swaps the upper fields of word i with the lower fields of word j. */
function swapFields(square: Uint32Array, i: number, j: number, shift: number, lower: number): void {
  const changed = ((square[i]! >>> shift) ^ square[j]!) & lower;
  square[j]! ^= changed;
  square[i]! ^= changed << shift;
}

const zeroWords = new Scratch();
const zeroNumbers = new Scratch();

/** Reads the zero points of `count` outputs: (count, groups). */
function zerosOf(packed: StoredTensor, first: number, count: number): Float32Array {
  const [groups, columns] = packed.shape as [number, number];
  const words = wordsOf(packed, zeroWords);
  const zeros = zeroNumbers.numbers(count * groups);
  for (let group = 0; group < groups; group++) {
    for (let i = 0; i < count; i++) {
      const output = first + i;
      const word = words[group * columns + (output >> 3)]!;
      zeros[i * groups + group] = (word >>> (4 * fieldOf[output & 7]!)) & 15;
    }
  }
  return zeros;
}
