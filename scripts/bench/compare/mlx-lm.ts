// Provides mlx-lm for comparisons: its Python, and the BLAS that makes them fair.
import { mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { backend, cacheDirectory, findLibrary } from "../../../ffi/native.ts";
import { MLX_VERSION } from "../../../ffi/pins.ts";
import { pythonWith } from "../../setup/python.ts";

export const mlxLmVersion = "0.32.2";
/** Uses the same version of MLX. */
export const mlxVersion = MLX_VERSION;

/** The path of the interpreter. */
export function mlxLmPython(): string {
  const mlx = `mlx${backend() === "cpu" ? "[cpu]" : ""}==${mlxVersion}`;
  const name = `mlx-lm-${mlxLmVersion}-mlx-${mlxVersion}-${backend()}`;
  return pythonWith(name, [`mlx-lm==${mlxLmVersion}`, mlx, "gguf"]);
}

/** libmlxc's BLAS, without our own products, as a library to preload for mlx-lm. */
export function blasShim(): string {
  const libs = dirname(findLibrary());
  const shim = join(cacheDirectory(), "bench", "libblas-shim.so");
  mkdirSync(dirname(shim), { recursive: true });
  const source = join(import.meta.dir, "..", "..", "..", "ffi", "blas.c");
  const link = ["-o", shim, `-L${libs}`, "-lscipy_openblas", `-Wl,-rpath,${libs}`];
  const command = ["c++", "-x", "c", "-DPLAIN", "-O2", "-fPIC", "-shared", source, ...link];
  if (Bun.spawnSync(command, { stdio: ["ignore", 2, 2] }).exitCode !== 0) {
    throw new Error("c++ failed");
  }
  return shim;
}
