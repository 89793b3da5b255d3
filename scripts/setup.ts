// Installs libmlxc with MLX and a BLAS, and the default model, if missing (with the argument "native", only the
// libraries). Everything is built under a temporary name and renamed once complete, so set-up can be interrupted.
import { existsSync } from "node:fs";
import {
  defaultModelPath,
  findLibrary,
  headersOf,
  homebrewLibrary,
  libraryIn,
  nativeDirectory,
} from "../ffi/native.ts";
import { headerDifferences } from "./headers.ts";
import { makeModel } from "./setup/model.ts";
import { makeNative } from "./setup/native.ts";
import { SetupError, settled } from "./setup/run.ts";

try {
  const model = defaultModelPath();
  const lacksModel = process.argv[2] !== "native" && !existsSync(model);
  // The model arrives while the libraries compile.
  const work = hasLibrary() ? [] : [makeNative()];
  if (lacksModel) work.push(makeModel(model));
  await settled(work);
} catch (error) {
  console.error(`mlx-serve: ${error instanceof Error ? error.message : error}`);
  process.exit(1);
}

/** Whether a compatible libmlxc exists: the user's, set-up's, or Homebrew's. */
function hasLibrary(): boolean {
  const { MLX_SERVE_MLXC: named } = process.env;
  if (named) {
    const [difference] = differences(findLibrary());
    if (difference) throw new SetupError(`MLX_SERVE_MLXC is incompatible: ${difference}`);
    return true;
  }
  if (existsSync(libraryIn(nativeDirectory()))) return true;
  const homebrew = homebrewLibrary();
  if (!homebrew) return false;
  const [difference] = differences(homebrew);
  if (difference) console.error(`mlx-serve: Homebrew's mlx-c is not used: ${difference}`);
  return difference === undefined;
}

/** A library without headers cannot be checked. */
function differences(library: string): string[] {
  const headers = headersOf(library);
  return headers ? headerDifferences(headers) : [];
}
