// What GPTQ and AWQ share: a matrix is stored with its inputs as rows, so that `name`.scales is (groups, outputs).
import { LoadError } from "../../files/load-error.ts";
import type { StoredTensor } from "../checkpoint.ts";
import { readNumbers, Scratch } from "./computed.ts";

export type Tensors = Map<string, StoredTensor>;

/** The names of all matrices that have a tensor of this kind. */
export function stemsOf(tensors: Tensors, kind: string): string[] {
  const ending = `.${kind}`;
  return [...tensors.keys()]
    .filter((name) => name.endsWith(ending))
    .map((name) => name.slice(0, -ending.length));
}

/** Takes a tensor out of the map: what comes in its place has another name. */
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

/** Throws where the tensor has another shape or holds something else. */
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

/** Throws unless it is a matrix of words. */
export function expectWords({ name, shape, format }: StoredTensor): void {
  if (shape.length !== 2 || shape.includes(0) || !["I32", "U32"].includes(format)) {
    throw new LoadError(`${name}: expected a matrix of I32, found (${shape}) of ${format}`);
  }
}

const scaleNumbers = new Scratch();
const scaleLine = new Scratch();
const scaleBytes = new Scratch();

/** Columns of (groups, outputs) as rows: (count, groups). */
export function columnNumbers(stored: StoredTensor, first: number, count: number): Float32Array {
  const [groups, outputs] = stored.shape as [number, number];
  const made = scaleNumbers.numbers(count * groups);
  const line = scaleLine.numbers(count);
  for (let group = 0; group < groups; group++) {
    readNumbers(stored, group * outputs + first, line, scaleBytes);
    for (let i = 0; i < count; i++) made[i * groups + group] = line[i]!;
  }
  return made;
}
