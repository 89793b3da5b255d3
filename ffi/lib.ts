// Opens libmlxc. Everything above this folder calls MLX through `mlxc`, and only after `openLibrary`.
import { dlopen } from "bun:ffi";
import { symbols } from "./symbols.ts";
import { traced } from "./trace.ts";
import { setVariables } from "./variables.ts";

const bind = (path: string) => dlopen(path, symbols).symbols;
type Bound = ReturnType<typeof bind>;

/** Addresses and sizes are numbers: both stay below 2^53 on the machines there are. */
export type Mlxc = {
  [K in keyof Bound]: (...args: Parameters<Bound[K]>) => Exclude<ReturnType<Bound[K]>, bigint>;
};

export let mlxc: Mlxc = new Proxy({} as Mlxc, {
  get(_, name) {
    throw new Error(`${String(name)} was called before MLX was opened`);
  },
});

export function openLibrary(path: string, options: { trace?: boolean } = {}): void {
  setVariables();
  const bound = bind(path) as Mlxc;
  mlxc = options.trace ? traced(bound) : bound;
}
