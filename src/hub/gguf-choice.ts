// Which GGUF file of several is meant. llama.cpp's users name the quantization: `org/name:Q4_K_M`. A model in several
// parts goes by the first of them.
import { basename } from "node:path";

/** model-00002-of-00003.gguf */
const part = /-(\d{5})-of-(\d{5})\.gguf$/i;

/** The files that `wanted` fits: all models without it, one where it is a file's name. */
export function matchingGgufs(paths: readonly string[], wanted?: string): string[] {
  const models = paths.filter(isModel).sort();
  if (wanted === undefined) return models;
  const named = models.filter((path) => path === wanted);
  if (named.length > 0) return named;
  const label = wanted.toLowerCase();
  return models.filter((path) => {
    const stem = ggufStem(path).toLowerCase();
    return stem === label || stem.endsWith(`-${label}`) || stem.endsWith(`.${label}`);
  });
}

/** The file's name without what tells the format and the part. */
export function ggufStem(path: string): string {
  return basename(path)
    .replace(part, "")
    .replace(/\.gguf$/i, "");
}

/** All parts of a model that there are, by the path of the first. */
export function partsOf(first: string, paths: readonly string[]): string[] {
  const [, , count] = part.exec(first) ?? [];
  if (count === undefined) return [first];
  const stem = first.replace(part, "");
  return paths.filter((path) => part.exec(path)?.[2] === count && path.replace(part, "") === stem);
}

/** Beside the models there are projectors of images, tables for quantizing, and further parts. */
function isModel(path: string): boolean {
  const number = part.exec(path)?.[1];
  return (
    /\.gguf$/i.test(path) &&
    !/^(mmproj|imatrix)/i.test(basename(path)) &&
    (number === undefined || Number(number) === 1)
  );
}
