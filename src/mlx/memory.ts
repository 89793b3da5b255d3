// MLX's allocator: what it holds and may hold, in bytes.
import { check } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";

const counter = (symbol: "mlx_get_active_memory" | "mlx_get_memory_limit") => (): number => {
  check(symbol, mlxc[symbol](out.view));
  return out.take();
};

/** Held by arrays. */
export const activeMemory = counter("mlx_get_active_memory");
export const memoryLimit = counter("mlx_get_memory_limit");

/** Returns to the system what freed arrays left in the allocator's cache. */
export function clearCache(): void {
  check("mlx_clear_cache", mlxc.mlx_clear_cache());
}
