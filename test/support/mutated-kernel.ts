// A kernel with a fault written into its source, to see that the tests notice.
import { expect } from "bun:test";
import type { MakeKernel } from "../../src/mlx/kernel.ts";
import { emulatedKernel } from "./emulated-kernel.ts";

/** `from` must be there once in the kernel of that name, in its body or in what stands before it. */
export function mutatedKernel(
  kernel: string,
  from: string,
  to: string,
  make = emulatedKernel,
): MakeKernel {
  return (language, source) => {
    if (source.name !== `mlx_serve_${kernel}`) return make(language, source);
    const { header = "" } = source;
    expect(`${header}${source.source}`.split(from)).toHaveLength(2);
    return make(language, {
      ...source,
      header: header.replace(from, () => to),
      source: source.source.replace(from, () => to),
    });
  };
}
