// Opens libmlxc. Code outside this folder calls MLX through `mlxc`, and only after `openLibrary`.
import { dlopen } from "bun:ffi";
import { cudaSymbols, ownSymbols, symbols } from "./symbols.ts";
import { traced } from "./trace.ts";
import { setVariables } from "./variables.ts";

const bind = (path: string) => dlopen(path, symbols).symbols;
const bindOwn = (path: string) => dlopen(path, ownSymbols).symbols;
const bindCuda = (path: string) => dlopen(path, cudaSymbols).symbols;
type Bound = ReturnType<typeof bind> & ReturnType<typeof bindOwn> & ReturnType<typeof bindCuda>;

/** The functions of libmlxc. Addresses and sizes are numbers, because both stay below 2^53 on existing machines. */
export type Mlxc = {
  [K in keyof Bound]: (...args: Parameters<Bound[K]>) => Exclude<ReturnType<Bound[K]>, bigint>;
};

export let mlxc: Mlxc = new Proxy({} as Mlxc, {
  get(_, name) {
    throw new Error(`${String(name)} was called before MLX was opened`);
  },
});

/** Tells whether the opened library has a function: a libmlxc that was built elsewhere lacks ours. */
export function has(name: keyof Mlxc): boolean {
  return name in mlxc;
}

export function openLibrary(path: string, options: { trace?: boolean } = {}): void {
  // Disables MLX's own CUDA graphs, which save no time: we capture whole steps as graphs (ffi/cuda/recording.cpp).
  setVariables({ MLX_USE_CUDA_GRAPHS: "0" });
  const own = openOptional(path, bindOwn);
  const cuda = openOptional(path, bindCuda);
  const bound = { ...bind(path), ...own, ...cuda } as Mlxc;
  mlxc = options.trace ? traced(bound) : bound;
}

function openOptional<T>(path: string, bindSome: (path: string) => T): T | undefined {
  try {
    return bindSome(path);
  } catch {
    return undefined;
  }
}
