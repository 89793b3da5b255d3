// MLX's allocator: what it holds and may hold, in bytes.
import { check } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";

type Counter = "mlx_get_active_memory" | "mlx_get_cache_memory" | "mlx_get_memory_limit";

const counter = (symbol: Counter) => (): number => {
  check(symbol, mlxc[symbol](out.view));
  return out.take();
};

/** Held by arrays. */
export const activeMemory = counter("mlx_get_active_memory");
/** Held for arrays to come. */
export const cacheMemory = counter("mlx_get_cache_memory");
export const memoryLimit = counter("mlx_get_memory_limit");

/** Returns to the system what freed arrays left in the allocator's cache. */
export function clearCache(): void {
  check("mlx_clear_cache", mlxc.mlx_clear_cache());
}

const limit = (symbol: "mlx_set_cache_limit" | "mlx_set_wired_limit") => (bytes: number) => {
  check(symbol, mlxc[symbol](out.view, Math.floor(bytes)));
  // The limit before.
  out.clear();
};

/** Of what is freed, so much may stay for arrays to come. */
export const setCacheLimit = limit("mlx_set_cache_limit");
/** So much of what arrays hold is kept from being swapped out: on Metal, at most the recommended working set. */
export const setWiredLimit = limit("mlx_set_wired_limit");
