// Tensors of recurrent layers, whose axes and numbers llama.cpp's converter changes, as Hugging Face has them.
import { LoadError } from "../files/load-error.ts";
import type { StoredTensor } from "./checkpoint.ts";
import { computedNumbers, computedWords, readNumbers, Scratch } from "./formats/computed.ts";

const changes: readonly (readonly [RegExp, (stored: StoredTensor) => StoredTensor])[] = [
  [/\.(ssm_conv1d(_[qkv])?|shortconv\.conv)\.weight$/, convolution],
  [/\.ssm_a$/, logarithms],
  [/\.ssm_(d|norm\.weight)$/, flat],
];

/** `name` is that of the file. */
export function restored(name: string, stored: StoredTensor): StoredTensor {
  const [, change] = changes.find(([names]) => names.test(name)) ?? [];
  return change ? change(stored) : stored;
}

const sizeOf = (shape: readonly number[]) => shape.reduce((a, b) => a * b, 1);

/** (channels, taps), with axes of size 1 in some files: MLX's (channels, taps, 1). */
function convolution(stored: StoredTensor): StoredTensor {
  const taps = stored.shape.at(-1) ?? 1;
  return { ...stored, shape: [sizeOf(stored.shape) / taps, taps, 1] };
}

/** Some have axes of size 1, some have one of groups. */
function flat(stored: StoredTensor): StoredTensor {
  return { ...stored, shape: [sizeOf(stored.shape)] };
}

const scratch = new Scratch();

/** The file has rates, which are -e to the power of what Hugging Face has. */
function logarithms(stored: StoredTensor): StoredTensor {
  const columns = stored.shape.at(-1) ?? 1;
  const shape = columns === 1 ? [sizeOf(stored.shape)] : stored.shape;
  const width = shape.at(-1)!;
  const { rowOrder } = stored;
  const fill = (target: Float32Array, first: number) => {
    readNumbers(stored, first * width, target, scratch);
    for (const [i, rate] of target.entries()) {
      if (!(rate <= 0))
        throw new LoadError(`${stored.name}: a rate of ${rate}, which is not below 0`);
      target[i] = Math.log(-rate);
    }
  };
  return { ...computedNumbers({ name: stored.name, shape, fill }), rowOrder };
}

/** Which input each of so many columns takes. */
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
