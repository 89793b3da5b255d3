// Which GGUF file of several is meant. llama.cpp's users name the quantization: `org/name:Q4_K_M`.
import { basename } from "node:path";

/** The files that `wanted` fits: all models without it, one where it is a file's name. */
export function matchingGgufs(paths: readonly string[], wanted?: string): string[] {
  const models = paths.filter(isModel).sort();
  if (wanted === undefined) return models;
  const named = models.filter((path) => path === wanted);
  if (named.length > 0) return named;
  const label = wanted.toLowerCase();
  return models.filter((path) => {
    const stem = basename(path.toLowerCase(), ".gguf");
    return stem === label || stem.endsWith(`-${label}`) || stem.endsWith(`.${label}`);
  });
}

/** Beside the models there are projectors of images and tables for quantizing. */
function isModel(path: string): boolean {
  return /\.gguf$/i.test(path) && !/^(mmproj|imatrix)/i.test(basename(path));
}
