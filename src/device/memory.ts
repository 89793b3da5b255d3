// A device's memory: the total, the part that other programs leave free, and MLX's limits.
import type { Backend } from "../../ffi/native.ts";
import {
  activeMemory,
  cacheMemory,
  clearCache,
  memoryLimit,
  setCacheLimit,
  setWiredLimit,
} from "../mlx/memory.ts";
import { gpuInfo, type Runtime } from "../mlx/runtime.ts";
import { type SystemMemory, systemMemory } from "./system-memory.ts";

export type MemoryFacts = {
  /** Total memory of the machine, or of a GPU with its own memory. */
  totalBytes: number;
  /** Maximum bytes of all arrays together. On a Mac the working set that Metal recommends. */
  usableBytes: number;
  /** Bytes for further arrays right now, beyond those that arrays and other programs hold. */
  availableBytes: number;
  /** Bytes that arrays hold. */
  activeBytes: number;
};

/** Returns the memory available for another model. */
export function roomOf({ usableBytes, availableBytes, activeBytes }: MemoryFacts): number {
  return Math.max(0, Math.min(usableBytes - activeBytes, availableBytes));
}

/** Default division of the memory. */
export type MemoryPolicy = {
  /** KV pool: its share of the memory that the weights leave free, and its maximum size. */
  kvShare: number;
  mostKvBytes: number;
  /** Limit of MLX's cache of freed arrays: the memory of a step, all remaining memory, or a number of bytes. */
  cache: "step" | "rest" | number;
  /** Whether the planned memory is wired, so that it is never swapped out. */
  wires: boolean;
};

export type DeviceMemory = {
  facts(): MemoryFacts;
  readonly policy: MemoryPolicy;
  setCacheLimit(bytes: number): void;
  setWiredLimit(bytes: number): void;
  clearCache(): void;
};

const mlxLimits = { setCacheLimit, setWiredLimit, clearCache };

/** Memory of a CPU, which it shares with all programs. */
function cpuMemory(): DeviceMemory {
  return {
    ...mlxLimits,
    facts: () => {
      const { totalBytes, availableBytes } = systemMemory();
      const usableBytes = Math.min(memoryLimit(), totalBytes);
      return { totalBytes, usableBytes, availableBytes, activeBytes: activeMemory() };
    },
    policy: { kvShare: 1 / 2, mostKvBytes: 2 ** 30, cache: 2 ** 25, wires: false },
  };
}

/** Memory of an NVIDIA GPU. MLX's cache of freed arrays counts as available. */
function cudaMemory(): DeviceMemory {
  return {
    ...mlxLimits,
    facts: () => {
      const info = gpuInfo();
      const usableBytes = memoryLimit();
      const totalBytes = Number(info.total_memory ?? usableBytes);
      const freeBytes = Number(info.free_memory ?? totalBytes);
      const availableBytes = freeBytes + cacheMemory();
      return { totalBytes, usableBytes, availableBytes, activeBytes: activeMemory() };
    },
    policy: { kvShare: 1 / 2, mostKvBytes: Number.POSITIVE_INFINITY, cache: "rest", wires: false },
  };
}

/** Unified memory of a Mac, which its GPU shares with all programs. */
export function metalMemory(
  info: Runtime["device"],
  read: () => SystemMemory = systemMemory,
): DeviceMemory {
  return {
    ...mlxLimits,
    facts: () => {
      const { totalBytes, availableBytes } = read();
      const recommended = info.max_recommended_working_set_size ?? memoryLimit();
      return {
        totalBytes,
        usableBytes: Math.min(Number(recommended), totalBytes),
        availableBytes: availableBytes + cacheMemory(),
        activeBytes: activeMemory(),
      };
    },
    policy: { kvShare: 1 / 2, mostKvBytes: Number.POSITIVE_INFINITY, cache: "step", wires: true },
  };
}

export const deviceMemory: Record<Backend, (info: Runtime["device"]) => DeviceMemory> = {
  cpu: cpuMemory,
  cuda: cudaMemory,
  metal: (info) => metalMemory(info),
};
