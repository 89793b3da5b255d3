// Reads a model from one GGUF file or from the parts of a split one: model-00001-of-00003.gguf and so on. The first
// part has the metadata; each has a header for its own tensors.
import { basename, dirname, join } from "node:path";
import { type Gguf, type GgufTensor, readGguf } from "./gguf.ts";
import { LoadError, quoted } from "./load-error.ts";

/** A model of one or more files. Version and alignment are those of the first file. */
export type GgufModel = Omit<Gguf, "tensors"> & {
  /** Paths of the model's files, in order. */
  readonly files: readonly string[];
  readonly tensors: ReadonlyMap<string, GgufTensor & { readonly file: string }>;
};

/** Reads a model. `path`: its only file, or the first of its parts. */
export function readGgufModel(path: string): GgufModel {
  const first = readGguf(path);
  const files = partsOf(path, first);
  const tensors = new Map<string, GgufTensor & { file: string }>();
  for (const [part, file] of files.entries()) {
    const gguf = part === 0 ? first : readGguf(file);
    const found = [splitIn(gguf, file, "no") ?? 0, splitIn(gguf, file, "count") ?? 1];
    if (found[0] !== part || found[1] !== files.length) {
      throw new LoadError(
        `${file}: expected part ${part + 1} of ${files.length}, found part ${found[0]! + 1} of ${found[1]}`,
      );
    }
    for (const [name, tensor] of gguf.tensors) {
      if (tensors.has(name)) {
        throw new LoadError(`${file}: tensor ${quoted(name)} is in another part too`);
      }
      tensors.set(name, { ...tensor, file });
    }
  }
  const count = splitIn(first, path, "tensors.count");
  if (count !== undefined && count !== tensors.size) {
    throw new LoadError(`${path}: expected ${count} tensors in all parts, found ${tensors.size}`);
  }
  return { ...first, files, tensors };
}

/** Returns the paths of all parts. Their number comes from the metadata, since any file may be named like a part. */
function partsOf(path: string, first: Gguf): string[] {
  const count = splitIn(first, path, "count") ?? 1;
  if (count <= 1) return [path];
  const [, stem, number, total] = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/.exec(basename(path)) ?? [];
  if (stem === undefined || Number(total) !== count) {
    const wanted = `-00001-of-${digits(count)}.gguf`;
    throw new LoadError(`${path}: expected a name that ends with ${wanted}, as one of its parts`);
  }
  const names = Array.from(
    { length: count },
    (_, i) => `${stem}-${digits(i + 1)}-of-${total}.gguf`,
  );
  if (Number(number) !== 1) {
    throw new LoadError(`${path}: one of ${count} parts: name the first, ${quoted(names[0]!)}`);
  }
  return names.map((name) => join(dirname(path), name));
}

function digits(number: number): string {
  return String(number).padStart(5, "0");
}

function splitIn({ metadata }: Gguf, path: string, key: string): number | undefined {
  const found = metadata.get(`split.${key}`);
  if (found === undefined) return undefined;
  if (typeof found === "number" && Number.isInteger(found) && found >= 0 && found < 1e5) {
    return found;
  }
  throw new LoadError(`${path}: expected split.${key} to be a count, found ${typeof found}`);
}
