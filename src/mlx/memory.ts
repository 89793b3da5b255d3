// MLX's allocator: its memory and its limits, in bytes.
import { check } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";

type Counter = "mlx_get_active_memory" | "mlx_get_cache_memory" | "mlx_get_memory_limit";

const counter = (symbol: Counter) => (): number => {
  check(symbol, mlxc[symbol](out.view));
  return out.take();
};

/** Bytes of live arrays. */
export const activeMemory = counter("mlx_get_active_memory");
/** Bytes of freed arrays that are kept for reuse. */
export const cacheMemory = counter("mlx_get_cache_memory");
export const memoryLimit = counter("mlx_get_memory_limit");

/** Returns the allocator's cache to the system. */
export function clearCache(): void {
  check("mlx_clear_cache", mlxc.mlx_clear_cache());
}

const limit = (symbol: "mlx_set_cache_limit" | "mlx_set_wired_limit") => (bytes: number) => {
  check(symbol, mlxc[symbol](out.view, Math.floor(bytes)));
  // Drops the previous limit, which MLX returns.
  out.clear();
};

/** Sets the maximum bytes of freed arrays that are kept for reuse. */
export const setCacheLimit = limit("mlx_set_cache_limit");
/** Sets the maximum wired memory, which is never swapped out; on Metal at most the recommended working set. */
export const setWiredLimit = limit("mlx_set_wired_limit");
