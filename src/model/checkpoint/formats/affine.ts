// Matrices of other tools in MLX's affine layout: scale * (q - zero) is scale * q + bias. The scales and the biases
// are float32 until they are loaded, so that nothing is rounded on the way.
import { LoadError } from "../../../files/load-error.ts";
import type { StoredTensor } from "../stored/tensor.ts";
import { computedNumbers, computedWords, fieldAt, putField, Scratch, wordsOf } from "./computed.ts";
import { expectTensor } from "./folder-tensors.ts";

export type AffineSource = {
  /** Of the matrix: `name`.weight is one of three tensors. */
  name: string;
  outputs: number;
  inputs: number;
  /** Groups in a row of the file. */
  groups: number;
  bits: number;
  /** In MLX's layout: (outputs, words). */
  weight: StoredTensor;
  /** The scales of rows from `first` on, (count, groups), and which q of theirs stands for zero. */
  scales(first: number, count: number): Float32Array;
  zeros(first: number, count: number): ArrayLike<number>;
};

/** What MLX has products for. */
const groupSizes = [128, 64, 32];

export function affineTensors(source: AffineSource): StoredTensor[] {
  const { name, outputs, inputs, groups, weight, scales, zeros } = source;
  // A larger group is several of MLX's with one scale.
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

/** The group of each input (`g_idx`); undefined where inputs of a group are adjacent. */
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
 * A matrix whose inputs are in groups that are not adjacent: the columns are sorted by group, and `name`.input_order
 * says which input each column takes. `wordsOfRow` reads a row of the weight as the file has it.
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

/** Experts become one matrix, and heads several: their inputs cannot be put in an order of their own. */
function isTakenApart(name: string): boolean {
  return /\.experts\.|\.kv_b_proj$/.test(name);
}

/** Each weight by the scale of its input's group. */
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
