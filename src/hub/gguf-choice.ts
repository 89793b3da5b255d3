// Chooses among several GGUF files, by name or, as in llama.cpp, by quantization: `org/name:Q4_K_M`. A split model is
// named by its first part.
import { basename } from "node:path";

/** Matches the end of a split model's file name, such as model-00002-of-00003.gguf. */
const part = /-(\d{5})-of-(\d{5})\.gguf$/i;

/** Returns the models with the file name or quantization `wanted`; all models if it is undefined. */
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

/** Returns the file name without extension and part number. */
export function ggufStem(path: string): string {
  return basename(path)
    .replace(part, "")
    .replace(/\.gguf$/i, "");
}

/** Returns the paths of a model's parts that exist, given the first. */
export function partsOf(first: string, paths: readonly string[]): string[] {
  const [, , count] = part.exec(first) ?? [];
  if (count === undefined) return [first];
  const stem = first.replace(part, "");
  return paths.filter((path) => part.exec(path)?.[2] === count && path.replace(part, "") === stem);
}

/** Returns whether a GGUF file is a model, rather than an image projector, an importance matrix or a later part. */
function isModel(path: string): boolean {
  const number = part.exec(path)?.[1];
  return (
    /\.gguf$/i.test(path) &&
    !/^(mmproj|imatrix)/i.test(basename(path)) &&
    (number === undefined || Number(number) === 1)
  );
}
