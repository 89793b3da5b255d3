// Converts other tools' matrices to MLX's affine layout: scale * (q - zero) becomes scale * q + bias. Scales and
// biases stay float32 until they are loaded, so conversion does not round.
import { LoadError } from "../../../files/load-error.ts";
import type { StoredTensor } from "../stored/tensor.ts";
import { computedNumbers, computedWords, fieldAt, putField, Scratch, wordsOf } from "./computed.ts";
import { expectTensor } from "./folder-tensors.ts";

export type AffineSource = {
  /** Stem of the tensors' names: `name`.weight, `name`.scales, `name`.biases. */
  name: string;
  outputs: number;
  inputs: number;
  /** Quantization groups per row in the file. */
  groups: number;
  bits: number;
  /** Quantized weights in MLX's layout: (outputs, words). */
  weight: StoredTensor;
  /** `scales` and `zeros` (zero points: the q that means 0) read `count` rows, from `first` on: (count, groups). */
  scales(first: number, count: number): Float32Array;
  zeros(first: number, count: number): ArrayLike<number>;
};

/** Group sizes that MLX's matrix kernels support, largest first. */
const groupSizes = [128, 64, 32];

export function affineTensors(source: AffineSource): StoredTensor[] {
  const { name, outputs, inputs, groups, weight, scales, zeros } = source;
  // Takes MLX's largest group size that divides the file's; a split group repeats its scale.
  const size = groupSizes.find((known) => (inputs / groups) % known === 0);
  if (!size) {
    throw new LoadError(
      `${name}: expected groups of a multiple of 32 inputs, found ${groups} of ${inputs} inputs`,
    );
  }
  const repeats = inputs / groups / size; // in MLX's groups
  const shape = [outputs, groups * repeats];
  const spread = (target: Float32Array, valueAt: (group: number) => number) => {
    for (let i = 0; i < target.length; i++) target[i] = valueAt(Math.floor(i / repeats));
  };
  return [
    { ...weight, name: `${name}.weight` },
    computedNumbers({
      name: `${name}.scales`,
      shape,
      fill: (target, first, count) => {
        const own = scales(first, count);
        spread(target, (group) => own[group]!);
      },
    }),
    computedNumbers({
      name: `${name}.biases`,
      shape,
      fill: (target, first, count) => {
        const [own, zero] = [scales(first, count), zeros(first, count)];
        spread(target, (group) => -own[group]! * zero[group]!);
      },
    }),
  ];
}

const orderWords = new Scratch();
const rowWords = new Scratch();

/** Returns each input's group (`g_idx`), or undefined if the inputs of every group are adjacent. */
export function groupsOf(
  order: StoredTensor,
  inputs: number,
  groups: number,
): Uint32Array | undefined {
  expectTensor(order, [inputs], ["I32"]);
  const found = wordsOf(order, orderWords);
  if (found.every((group, input) => group === Math.floor((input * groups) / inputs))) {
    return undefined;
  }
  const wrong = found.find((group) => group >= groups);
  if (wrong === undefined) return found.slice();
  throw new LoadError(`${order.name}: expected groups below ${groups}, found ${wrong | 0}`);
}

/**
 * Converts a matrix whose groups are not contiguous (act-order): sorts columns by group and stores the input of each
 * column in `name`.input_order. `wordsOfRow` reads a row of the file's weight.
 */
export function orderedTensors(
  source: AffineSource,
  groupOf: Uint32Array,
  wordsOfRow: (row: number, target: Uint32Array) => void,
): StoredTensor[] {
  const { name, outputs, inputs, groups, bits } = source;
  const order = Uint32Array.from(groupOf.keys()).sort((a, b) => groupOf[a]! - groupOf[b]! || a - b);
  const isEven = order.every((input, i) => groupOf[input] === Math.floor((i * groups) / inputs));
  if (!isEven || isTakenApart(name)) return [dequantizedTensor(source, groupOf, wordsOfRow)];
  const weight = computedWords({
    name,
    shape: [outputs, (inputs * bits) / 32],
    fill: (target, first, count) => {
      const words = rowWords.words((inputs * bits) / 32);
      target.fill(0);
      for (let i = 0; i < count; i++) {
        wordsOfRow(first + i, words);
        for (let column = 0; column < inputs; column++) {
          const field = fieldAt(words, 0, order[column]!, bits);
          putField(target, i * words.length, column, bits, field);
        }
      }
    },
  });
  const bytes = new Uint8Array(order.buffer);
  const inputOrder: StoredTensor = {
    name: `${name}.input_order`,
    shape: [inputs],
    format: "U32",
    bytes: bytes.length,
    read: (offset, target) => target.set(bytes.subarray(offset, offset + target.length)),
  };
  return [...affineTensors({ ...source, weight }), inputOrder];
}

/** Tells whether a matrix is stacked (experts) or split by head (kv_b_proj) later: its columns keep their order. */
function isTakenApart(name: string): boolean {
  return /\.experts\.|\.kv_b_proj$/.test(name);
}

/** Dequantizes each weight with the scale and zero point of its input's group. */
function dequantizedTensor(
  { name, outputs, inputs, groups, bits, scales, zeros }: AffineSource,
  groupOf: Uint32Array,
  wordsOfRow: (row: number, target: Uint32Array) => void,
): StoredTensor {
  return computedNumbers({
    name: `${name}.weight`,
    shape: [outputs, inputs],
    fill: (target, first, count) => {
      const words = rowWords.words((inputs * bits) / 32);
      const [scale, zero] = [scales(first, count), zeros(first, count)];
      for (let i = 0; i < count; i++) {
        wordsOfRow(first + i, words);
        for (let input = 0; input < inputs; input++) {
          const group = i * groups + groupOf[input]!;
          const quant = fieldAt(words, 0, input, bits);
          target[i * inputs + input] = scale[group]! * (quant - zero[group]!);
        }
      }
    },
  });
}
