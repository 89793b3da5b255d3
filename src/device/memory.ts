// The memory of a device: how much there is, what others leave of it, and the limits that MLX keeps to.
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
  /** Of the machine, or of a GPU that has its own. */
  totalBytes: number;
  /** What arrays may take in all. On a Mac it is the working set that Metal recommends. */
  usableBytes: number;
  /** What more arrays could take now: the rest is held by arrays and by other programs. */
  availableBytes: number;
  /** What arrays hold. */
  activeBytes: number;
};

/** What there is for one more model. */
export function roomOf({ usableBytes, availableBytes, activeBytes }: MemoryFacts): number {
  return Math.max(0, Math.min(usableBytes - activeBytes, availableBytes));
}

/** What a model gets of the memory unless the options say. */
export type MemoryPolicy = {
  /** The KV pool: this share of what the weights leave, and so much at most. */
  kvShare: number;
  mostKvBytes: number;
  /** MLX's cache: as much as a step takes, all that is left, or so many bytes. */
  cache: "step" | "rest" | number;
  /** Whether what is planned is kept from being swapped out. */
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

/** An NVIDIA GPU's own. What MLX has cached is free to it. */
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

/** A Mac's, which its GPU shares with everything else. */
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
