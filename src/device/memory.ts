// A device's memory: how much there is, how much other programs leave of it, and MLX's limits.
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
  /** Memory of the machine, or of a GPU with its own memory. */
  totalBytes: number;
  /** Limit for all arrays together. On a Mac the working set that Metal recommends. */
  usableBytes: number;
  /** Memory for further arrays right now, beyond what arrays and other programs hold. */
  availableBytes: number;
  /** Memory that arrays hold. */
  activeBytes: number;
};

/** Memory available for another model. */
export function roomOf({ usableBytes, availableBytes, activeBytes }: MemoryFacts): number {
  return Math.max(0, Math.min(usableBytes - activeBytes, availableBytes));
}

/** Default division of the memory. */
export type MemoryPolicy = {
  /** KV pool: share of the memory that the weights leave, and the maximum. */
  kvShare: number;
  mostKvBytes: number;
  /** Limit of MLX's cache: the memory of a step, all that is left, or a number of bytes. */
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

/** A CPU shares its memory with everything else. */
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

/** An NVIDIA GPU's own memory. MLX's cache counts as available. */
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

/** A Mac's unified memory, which its GPU shares with everything else. */
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
