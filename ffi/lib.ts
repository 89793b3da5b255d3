// Opens libmlxc. Everything above this folder calls MLX through `mlxc`, and only after `openLibrary`.
import { dlopen } from "bun:ffi";
import { ownSymbols, recordingSymbols, symbols } from "./symbols.ts";
import { traced } from "./trace.ts";
import { setVariables } from "./variables.ts";

const bind = (path: string) => dlopen(path, symbols).symbols;
const bindOwn = (path: string) => dlopen(path, ownSymbols).symbols;
const bindRecording = (path: string) => dlopen(path, recordingSymbols).symbols;
type Bound = ReturnType<typeof bind> &
  ReturnType<typeof bindOwn> &
  ReturnType<typeof bindRecording>;

/** Addresses and sizes are numbers: both stay below 2^53 on the machines there are. */
export type Mlxc = {
  [K in keyof Bound]: (...args: Parameters<Bound[K]>) => Exclude<ReturnType<Bound[K]>, bigint>;
};

export let mlxc: Mlxc = new Proxy({} as Mlxc, {
  get(_, name) {
    throw new Error(`${String(name)} was called before MLX was opened`);
  },
});

/** Whether libmlxc has the operations of our own: one from elsewhere has not. */
export let hasOwn = false;

/** Whether it has those that record steps for CUDA. */
export let hasRecording = false;

export function openLibrary(path: string, options: { trace?: boolean } = {}): void {
  setVariables();
  const own = openOptional(path, bindOwn);
  const recording = openOptional(path, bindRecording);
  const bound = { ...bind(path), ...own, ...recording } as Mlxc;
  hasOwn = own !== undefined;
  hasRecording = recording !== undefined;
  mlxc = options.trace ? traced(bound) : bound;
}

function openOptional<T>(path: string, bindSome: (path: string) => T): T | undefined {
  try {
    return bindSome(path);
  } catch {
    return undefined;
  }
}
