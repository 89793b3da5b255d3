// Turns C prototypes without parameter names into typed declarations for bun:ffi. Each C type becomes an FFI type:
//
//   a handle (a struct of one pointer)      "ptr"     null where the header says "may be null"
//   T* that the call writes, data, text     "buffer"  the view itself, never its address
//   void*, a function                       "ptr"
//   mlx_optional_int, _float, _dtype        "u64"     value in the low 32 bits, has_value in bit 32
//   T* returned                             "ptr"
//   size_t returned                         size      a number: all sizes are below 2^53
import { FFIType } from "bun:ffi";

const size = FFIType.u64_fast;

export const scalars = {
  void: "void",
  bool: "bool",
  int: "i32",
  float: "f32",
  double: "f64",
  uint64_t: "u64",
  size_t: "u64",
  mlx_dtype: "i32",
  mlx_device_type: "i32",
} as const;

type Passed<T> = T extends keyof typeof scalars
  ? (typeof scalars)[T]
  : T extends `mlx_optional_${string}`
    ? "u64"
    : T extends "void*"
      ? "ptr"
      : T extends `${string}*`
        ? "buffer"
        : "ptr";
type Returned<T> = T extends "size_t" ? typeof size : T extends `${string}*` ? "ptr" : Passed<T>;

/** Maps parameter types. A function pointer must be the last parameter, because its own parameters are cut off. */
type Args<T> = T extends "void"
  ? []
  : T extends `${infer Before} (*)${string}`
    ? Args<`${Before} function`>
    : T extends `${infer First}, ${infer Rest}`
      ? [Passed<First>, ...Args<Rest>]
      : [Passed<T>];
type Parts<T> = T extends `const ${infer Rest}`
  ? Parts<Rest>
  : T extends `${infer Type} ${infer Name}(${infer Params})`
    ? { type: Type; name: Name; params: Params }
    : never;

export type Declarations<Prototypes extends readonly string[]> = {
  [P in Parts<Prototypes[number]> as P["name"]]: {
    args: Args<P["params"]>;
    returns: Returned<P["type"]>;
  };
};

export function declared<const P extends readonly string[]>(prototypes: P): Declarations<P> {
  const entries = prototypes.map((prototype) => {
    const [, type = "", name = "", params = ""] = /^(.+) (\w+)\((.+)\)$/.exec(prototype)!;
    const types = params.replace(/ \(\*\).*/, " function").split(", ");
    const args = types.filter((param) => param !== "void").map(passed);
    return [name, { args, returns: returned(type) }];
  });
  return Object.fromEntries(entries);
}

function passed(type: string): string {
  if (type in scalars) return scalars[type as keyof typeof scalars];
  if (type.startsWith("mlx_optional_")) return "u64";
  return type.endsWith("*") && type !== "void*" ? "buffer" : "ptr";
}

function returned(type: string): string | number {
  if (type === "size_t") return size;
  return type.endsWith("*") ? "ptr" : passed(type);
}
