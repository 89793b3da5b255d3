// Configures the BLAS linked into libmlxc (blas.c). A libmlxc that was built elsewhere, or for macOS, has none: MLX
// then uses the system's BLAS.
import { dlopen } from "bun:ffi";
import { availableParallelism } from "node:os";
import { readText } from "./memory.ts";

export type Blas = { name: string; threads: number };

/** Sets BLAS's threads to `MLX_SERVE_THREADS`, or one per core. Returns undefined if libmlxc has no BLAS. */
export function openBlas(library: string, env = process.env): Blas | undefined {
  const blas = bind(library);
  if (!blas) return undefined;
  const threads = Number(env.MLX_SERVE_THREADS ?? availableParallelism());
  if (!Number.isInteger(threads) || threads < 1) {
    throw new Error(
      `MLX_SERVE_THREADS must be a whole number from 1, not ${env.MLX_SERVE_THREADS}`,
    );
  }
  blas.mlx_serve_blas_set_threads(threads);
  return {
    name: readText(blas.mlx_serve_blas_name() as never),
    threads: blas.mlx_serve_blas_threads(),
  };
}

function bind(library: string) {
  try {
    return dlopen(library, {
      mlx_serve_blas_name: { args: [], returns: "ptr" }, // const char* (void)
      mlx_serve_blas_threads: { args: [], returns: "i32" }, // int (void)
      mlx_serve_blas_set_threads: { args: ["i32"], returns: "void" }, // void (int)
    }).symbols;
  } catch {
    return undefined;
  }
}
