// Finds and checks a folder's tensors by name, for the converters of quantization formats.
import { LoadError } from "../../../files/load-error.ts";
import type { StoredTensor } from "../stored/tensor.ts";

export type Tensors = Map<string, StoredTensor>;

/** Returns the name of every matrix that has a tensor `name`.`kind`. */
export function stemsOf(tensors: Tensors, kind: string): string[] {
  const ending = `.${kind}`;
  return [...tensors.keys()]
    .filter((name) => name.endsWith(ending))
    .map((name) => name.slice(0, -ending.length));
}

/** Removes a tensor from the map and returns it; undefined if the map has none. */
export function takeFrom(tensors: Tensors, name: string): StoredTensor | undefined {
  const stored = tensors.get(name);
  tensors.delete(name);
  return stored;
}

export function required(tensors: Tensors, name: string): StoredTensor {
  const stored = takeFrom(tensors, name);
  if (!stored) throw new LoadError(`tensor ${name} is missing`);
  return stored;
}

/** Throws if the tensor's shape is not `wanted`, or its type is not in `formats`. */
export function expectTensor(
  { name, shape, format }: StoredTensor,
  wanted: readonly number[],
  formats: readonly StoredTensor["format"][],
): void {
  if (shape.join() !== wanted.join()) {
    throw new LoadError(`${name}: expected shape (${wanted}), found (${shape})`);
  }
  if (!formats.includes(format)) {
    throw new LoadError(`${name}: expected ${formats.join(" or ")}, found ${format}`);
  }
}

/** Throws unless the tensor is a matrix of words. */
export function expectWords({ name, shape, format }: StoredTensor): void {
  if (shape.length !== 2 || shape.includes(0) || !["I32", "U32"].includes(format)) {
    throw new LoadError(`${name}: expected a matrix of I32, found (${shape}) of ${format}`);
  }
}

/** Names of tensors that scale or quantize activations. */
const ofActivations =
  /(?:^|\.)(?:(?:input|output|activation)_(?:global_)?(?:scale|zero_point)|(?:[qkv]|kv|prob)_(?:scale|zero_point)|input_scale_ub)$/;

/** Drops the scales of activations, which stay unquantized here. */
export function dropActivationScales(tensors: Tensors): void {
  for (const name of [...tensors.keys()]) if (ofActivations.test(name)) tensors.delete(name);
}
