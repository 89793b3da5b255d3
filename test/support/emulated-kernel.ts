// A CUDA kernel run on a CPU (emulator.h): written out as MLX would, compiled with the C++ compiler that set-up
// needs anyway, and called with the memory of MLX's arrays.
import { dlopen, ptr } from "bun:ffi";
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { cudaInstructions, wgmma } from "../../src/kernels/source.ts";
import { evaluate, type MlxArray } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import type { KernelLaunch, KernelSource, MakeKernel } from "../../src/mlx/kernel.ts";
import { op } from "../../src/mlx/op.ts";
import { zeros } from "../../src/mlx/ops.ts";

const types: Partial<Record<Dtype, string>> = {
  bfloat16: "__nv_bfloat16",
  float16: "__half",
  float32: "float",
  int32: "int",
  uint32: "unsigned",
};

export const emulatedKernel: MakeKernel = (_, source) => ({
  configure: (launch) => ({
    call: (...inputs) => run(source, launch, inputs),
    free() {},
  }),
  free() {},
});

function run(source: KernelSource, launch: KernelLaunch, given: readonly MlxArray[]): MlxArray[] {
  const inputs = given.map((input) => (source.rowContiguous === false ? input : contiguous(input)));
  const outputs = launch.outputs.map(({ shape, dtype }) => zeros(shape, dtype));
  evaluate(...inputs, ...outputs);
  const all = [...inputs, ...outputs].map((x) => new Uint8Array(x.memory()));
  const groups = launch.grid.map((threads, i) => Math.ceil(threads / launch.threadGroup[i]!));
  const kernel = compiled(textOf(source, launch, inputs));
  const addresses = BigUint64Array.from(all, (memory) => BigInt(ptr(memory)));
  const sizes = BigUint64Array.from(all, ({ length }) => BigInt(length));
  const [threads] = launch.threadGroup;
  kernel(addresses, sizes, Int32Array.from(groups), threads, source.sharedMemory ?? 0);
  return outputs;
}

/** The same elements in row order: a copy only if they were not. */
function contiguous(x: MlxArray): MlxArray {
  return op("mlx_contiguous", x.handle, false);
}

function textOf(source: KernelSource, launch: KernelLaunch, inputs: readonly MlxArray[]): string {
  const { outputs, template = {} } = launch;
  const constants = Object.entries(template).map(([name, value]) =>
    typeof value === "string"
      ? `using ${name} = ${types[value]};`
      : `constexpr ${typeof value === "number" ? "int" : "bool"} ${name} = ${value};`,
  );
  const parameters = [
    ...source.inputs.map((name, i) => [`const ${types[inputs[i]!.dtype]}*`, name]),
    ...source.outputs.map((name, i) => [`${types[outputs[i]!.dtype]}*`, name]),
  ];
  const values = parameters.map(([type], i) => `static_cast<${type}>(arrays[${i}].data())`);
  return `
${source.header?.replace(cudaInstructions, "").replace(wgmma, "")}
${constants.join("\n")}
static void kernel(${parameters.map((each) => each.join(" ")).join(", ")}) {
${source.source}
}
extern "C" void run(
    void** memory, const size_t* sizes, const int* groups, int threads, int shared) {
  Guarded arrays[${values.length}];
  for (int i = 0; i < ${values.length}; i++) arrays[i].take(memory[i], sizes[i]);
  launch({groups[0], groups[1], groups[2]}, threads, shared, [&] { kernel(${values.join(", ")}); });
  for (int i = 0; i < ${values.length}; i++) arrays[i].give_back(memory[i]);
}
`;
}

type Run = (
  arrays: BigUint64Array,
  sizes: BigUint64Array,
  groups: Int32Array,
  threads: number,
  shared: number,
) => void;

const HEADER = "emulator.h";
const libraries = new Map<string, Run>();
let folder: string | undefined;

function compiled(text: string): Run {
  const found = libraries.get(text);
  if (found) return found;
  folder ??= preparedFolder();
  const name = join(folder, `kernel-${libraries.size}`);
  writeFileSync(`${name}.cpp`, text);
  compile("-include", join(folder, HEADER), "-o", `${name}.so`, `${name}.cpp`);
  const { symbols } = dlopen(`${name}.so`, {
    run: { args: ["buffer", "buffer", "buffer", "i32", "i32"], returns: "void" },
  });
  libraries.set(text, symbols.run as Run);
  return symbols.run as Run;
}

/** With the emulator as a precompiled header: most of a kernel's time to compile would be the standard library's. */
function preparedFolder(): string {
  const made = mkdtempSync(join(tmpdir(), "emulated-"));
  process.on("exit", () => rmSync(made, { recursive: true }));
  const header = join(made, HEADER);
  copyFileSync(join(import.meta.dir, HEADER), header);
  compile("-x", "c++-header", "-o", `${header}.gch`, header);
  return made;
}

function compile(...args: string[]): void {
  const flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC"];
  const { success, stderr } = Bun.spawnSync(["c++", ...flags, ...args]);
  if (!success) throw new Error(stderr.toString());
}
