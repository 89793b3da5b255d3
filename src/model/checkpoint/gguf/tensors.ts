// Restores tensors whose axes or values llama.cpp's converter changes: those of recurrent layers, and experts whose
// gate and up it may have fused.
import { LoadError } from "../../../files/load-error.ts";
import { computedNumbers, computedWords, readNumbers, Scratch } from "../formats/computed.ts";
import { runsOf } from "../stored/arrangement.ts";
import type { StoredTensor } from "../stored/tensor.ts";

const changes: readonly (readonly [RegExp, (stored: StoredTensor) => StoredTensor])[] = [
  [/\.(ssm_conv1d(_[qkv])?|shortconv\.conv)\.weight$/, convolution],
  [/\.ssm_a$/, logarithms],
  [/\.ssm_(d|norm\.weight)$/, flat],
];

/** Undoes the converter's change to this tensor, if any. `name` is the name in the file. */
export function restored(name: string, stored: StoredTensor): StoredTensor {
  const [, change] = changes.find(([names]) => names.test(name)) ?? [];
  return change ? change(stored) : stored;
}

/** Splits experts' fused gate_up into the two tensors that other files have. */
export function separated(name: string, stored: StoredTensor): [name: string, StoredTensor][] {
  const both = /(?<=\.ffn_)gate_up(?=_exps\.weight$)/;
  const [experts, rows, columns] = stored.shape;
  if (!both.test(name) || stored.shape.length !== 3) return [[name, stored]];
  return ["gate", "up"].map((own, half) => {
    const runs = Array.from({ length: experts! }, (_, i) => {
      return { first: i * rows! + (half * rows!) / 2, count: rows! / 2 };
    });
    const shape = [experts!, rows! / 2, columns!];
    return [
      name.replace(both, own),
      runsOf(stored.name, stored, { rows: experts! * rows!, runs, shape }),
    ];
  });
}

const sizeOf = (shape: readonly number[]) => shape.reduce((a, b) => a * b, 1);

/** Reshapes (channels, taps), in some files with axes of size 1, to MLX's (channels, taps, 1). */
function convolution(stored: StoredTensor): StoredTensor {
  const taps = stored.shape.at(-1) ?? 1;
  return { ...stored, shape: [sizeOf(stored.shape) / taps, taps, 1] };
}

/** Flattens a tensor, whose further axes have size 1 or divide it into groups. */
function flat(stored: StoredTensor): StoredTensor {
  return { ...stored, shape: [sizeOf(stored.shape)] };
}

const scratch = new Scratch();

/** Restores A_log: the file has exp(A_log), in most families negated. */
function logarithms(stored: StoredTensor): StoredTensor {
  const columns = stored.shape.at(-1) ?? 1;
  const shape = columns === 1 ? [sizeOf(stored.shape)] : stored.shape;
  const width = shape.at(-1)!;
  const { rowOrder } = stored;
  const fill = (target: Float32Array, first: number) => {
    readNumbers(stored, first * width, target, scratch);
    for (const [i, rate] of target.entries()) {
      if (!Number.isFinite(rate)) throw new LoadError(`${stored.name}: a rate of ${rate}`);
      target[i] = Math.log(Math.abs(rate));
    }
  };
  return { ...computedNumbers({ name: stored.name, shape, fill }), rowOrder };
}

/** Makes the tensor that lists the input of each column. */
export function inputOrderOf(
  name: string,
  columns: number,
  order: (column: number) => number,
): StoredTensor {
  return computedWords({
    name,
    shape: [columns],
    fill: (target) => target.set(target.map((_, column) => order(column))),
  });
}
