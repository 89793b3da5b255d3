// Assembles a kernel's source. A kernel is a `.c` file: the body of a function whose signature MLX generates from the
// names of inputs, outputs and constants. A kernel includes `.h` files with functions, which see only their
// parameters. Kernels and headers use the subset of C++ that CUDA and Metal share; cuda.h and metal.h define names in
// capitals for what differs.
import type { Language } from "../../mlx/kernel.ts";
import bulk from "./bulk.h" with { type: "text" };
import cluster from "./cluster.h" with { type: "text" };
import cuda from "./cuda.h" with { type: "text" };
import cudaInstructions from "./cuda-instructions.h" with { type: "text" };
import layer from "./layer.h" with { type: "text" };
import metal from "./metal.h" with { type: "text" };
import tensorCopy from "./tensor-copy.h" with { type: "text" };
import wgmma from "./wgmma.h" with { type: "text" };
import wgmmaOperand from "./wgmma-operand.h" with { type: "text" };

/** Size of a tensor map as tensor-copy.h writes it, in 32-bit words. */
export const MAP_WORDS = 32;

/** Exported for the tests' emulator, which replaces these headers by its own implementations for a CPU. */
export { bulk, cluster, cudaInstructions, tensorCopy, wgmma };

const hostHeaders = new Map([
  ["bulk.h", bulk],
  ["cluster.h", cluster],
  ["cuda-instructions.h", cudaInstructions],
  ["layer.h", layer],
  ["tensor-copy.h", tensorCopy],
  ["wgmma.h", wgmma],
  ["wgmma-operand.h", wgmmaOperand],
]);

const names: Record<Language, string> = { cuda, metal };

/**
 * Declares the thread's indices at the beginning of every kernel's body. A header cannot do that: MLX searches the
 * body for the names of Metal's attributes, and adds those it finds to the kernel's arguments.
 */
const position: Record<Language, string> = {
  cuda: `
  const int lane = int(threadIdx.x & 31), warp = int(threadIdx.x >> 5), thread_index = int(threadIdx.x);
  const int cta_x = int(blockIdx.x), cta_y = int(blockIdx.y), cta_z = int(blockIdx.z);
`,
  metal: `
  const int lane = int(thread_index_in_simdgroup), warp = int(simdgroup_index_in_threadgroup);
  const int thread_index = int(thread_position_in_threadgroup.x);
  const int cta_x = int(threadgroup_position_in_grid.x), cta_y = int(threadgroup_position_in_grid.y);
  const int cta_z = int(threadgroup_position_in_grid.z);
`,
};

export type SourceOptions = {
  /** Headers of the kernel's own folder. */
  headers?: ReadonlyMap<string, string>;
  /** Macros, defined before the headers. */
  defines?: readonly string[];
};

/** Assembles a kernel's header and body for one language. */
export function kernelSource(
  body: string,
  language: Language,
  { headers, defines = [] }: SourceOptions = {},
): { source: string; header: string } {
  const included = new Set<string>();
  const expand = (text: string): string =>
    text.replace(/^#include "(.+)"\n/gm, (_, name: string) => {
      const header = hostHeaders.get(name) ?? headers?.get(name);
      if (header === undefined)
        throw new Error(`a kernel includes ${name}, and there is no such file`);
      if (included.has(name)) return "";
      included.add(name);
      return expand(header);
    });
  const includes = body.match(/^#include .+\n/gm) ?? [];
  const begin = body.includes("AWAIT_INPUTS") ? "" : "  AWAIT_INPUTS;\n";
  return {
    header: expand(
      [...defines.map((name) => `#define ${name}\n`), names[language], ...includes].join(""),
    ),
    source: position[language] + begin + body.replace(/^#include .+\n/gm, ""),
  };
}
