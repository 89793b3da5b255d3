// What MLX has allocated, in bytes, and how much it may.
import { check } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";

type Counter =
  | "mlx_get_active_memory"
  | "mlx_get_cache_memory"
  | "mlx_get_memory_limit"
  | "mlx_get_peak_memory";

type Limit = "mlx_set_cache_limit" | "mlx_set_memory_limit" | "mlx_set_wired_limit";

const counter = (symbol: Counter) => (): number => {
  check(symbol, mlxc[symbol](out.view));
  return out.take();
};

/** Sets a limit and returns the one before. */
const limit =
  (symbol: Limit) =>
  (bytes: number): number => {
    check(symbol, mlxc[symbol](out.view, bytes));
    return out.take();
  };

/** Held by arrays. */
export const activeMemory = counter("mlx_get_active_memory");
/** Freed by arrays, kept for the next ones. */
export const cacheMemory = counter("mlx_get_cache_memory");
/** The most that was active since the last reset. */
export const peakMemory = counter("mlx_get_peak_memory");
export const memoryLimit = counter("mlx_get_memory_limit");

export const setMemoryLimit = limit("mlx_set_memory_limit");
export const setCacheLimit = limit("mlx_set_cache_limit");
/** Of memory that macOS keeps resident for the GPU. */
export const setWiredLimit = limit("mlx_set_wired_limit");

export function resetPeakMemory(): void {
  check("mlx_reset_peak_memory", mlxc.mlx_reset_peak_memory());
}

export function clearCache(): void {
  check("mlx_clear_cache", mlxc.mlx_clear_cache());
}
