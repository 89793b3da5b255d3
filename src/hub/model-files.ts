// Selects the files of a repo to pull: one format of the weights, and the files that describe them.

import { matchingGgufs, partsOf } from "./gguf-choice.ts";
import { HubError } from "./hub-error.ts";

export type Wanted = {
  /** GGUF file to pull, by name or quantization. */
  readonly file?: string;
  /** Globs of the files to pull, instead of the automatic selection. */
  readonly include?: readonly string[];
};

/** Files that describe the weights, at the top level: folders usually contain other formats of the weights. */
const describing = [
  "*.json",
  "*.jinja",
  "*.model",
  "*.tiktoken",
  "merges.txt",
  "vocab.txt",
  "rwkv_vocab*.txt",
  "additional_chat_templates/*.jinja",
  // Configs of sentence-transformers modules, such as 1_Pooling.
  "[0-9]_*/config.json",
].map((pattern) => new Bun.Glob(pattern));
/** Index files of PyTorch, TensorFlow and Flax weights. */
const otherIndex = /\.(bin|h5|msgpack)\.index\.json$/;

export function filesOfModel(id: string, paths: readonly string[], wanted: Wanted = {}): string[] {
  if (wanted.include && wanted.include.length > 0) {
    const globs = wanted.include.map((pattern) => new Bun.Glob(pattern));
    const chosen = paths.filter((path) => globs.some((glob) => glob.match(path)));
    if (chosen.length > 0) return chosen;
    throw new HubError(`${id} has no file like ${wanted.include.join(", ")}`);
  }
  const beside = paths.filter(
    (path) => describing.some((glob) => glob.match(path)) && !otherIndex.test(path),
  );
  const weights = wanted.file === undefined ? safetensorsOf(paths) : [];
  if (weights.length > 0) return [...beside, ...weights];
  return [...beside, ...partsOf(ggufOf(id, paths, wanted.file), paths)];
}

/** Returns the safetensors files, without the consolidated file that some repos contain as well. */
function safetensorsOf(paths: readonly string[]): string[] {
  const all = paths.filter((path) => /^[^/]+\.safetensors$/.test(path));
  const named = all.filter((path) => path.startsWith("model"));
  return named.length > 0 ? named : all;
}

function ggufOf(id: string, paths: readonly string[], wanted: string | undefined): string {
  const files = matchingGgufs(paths, wanted);
  if (files.length === 1) return files[0]!;
  const choice = files.length > 0 ? files : matchingGgufs(paths);
  if (choice.length === 0) throw new HubError(`${id} has neither safetensors nor GGUF files`);
  const names = choice.slice(0, 12).join(", ") + (choice.length > 12 ? ", ..." : "");
  throw new HubError(`${id} has several GGUF files: choose one as ${id}:<file>, from ${names}`);
}
