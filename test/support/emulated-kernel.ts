// A kernel run on a CPU (emulator/): written out as MLX would for CUDA or for Metal, compiled with the C++ compiler that
// set-up needs anyway, and called with the memory of MLX's arrays. What no GPU may do is an error (emulator/memory.cpp).
import { dlopen, type Pointer, ptr } from "bun:ffi";
import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { cacheDirectory } from "../../ffi/native.ts";
import {
  attributesOf,
  renderKernel,
  uniqueName,
} from "../../scripts/check-kernels/metal-signature.ts";
import { MOST_SHARED_BYTES } from "../../scripts/check-kernels/metal-tree.ts";
import {
  bulk,
  cluster,
  cudaInstructions,
  tensorCopy,
  wgmma,
} from "../../src/kernels/host/source.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import type { KernelLaunch, KernelSource, Language, MakeKernel } from "../../src/mlx/kernel.ts";
import { op } from "../../src/mlx/op.ts";
import { zeros } from "../../src/mlx/ops.ts";

const emulated =
  (inOrder: boolean): MakeKernel =>
  (language, source) => ({
    configure: (launch) => ({
      call: (...inputs) => run({ language, source, launch, inOrder }, inputs),
      free() {},
    }),
    free() {},
  });

/** Lanes take turns, the last one first. */
export const emulatedKernel = emulated(false);
/** Lanes run in their order, each as far as it can: what it does not wait for is not there. */
export const orderedKernel = emulated(true);

type Emulated = {
  language: Language;
  source: KernelSource;
  launch: KernelLaunch;
  inOrder: boolean;
};

function run(emulated: Emulated, given: readonly MlxArray[]): MlxArray[] {
  const { language, source, launch } = emulated;
  const inputs = given.map((input) => (source.rowContiguous === false ? input : contiguous(input)));
  const outputs = launch.outputs.map(({ shape, dtype }) => zeros(shape, dtype));
  const shaped = shapedInputs(source);
  const shapes = shaped.map((name) => {
    const { shape } = inputs[source.inputs.indexOf(name)]!;
    return array(Int32Array.from({ length: MOST_AXES }, (_, axis) => shape[axis] ?? 0));
  });
  evaluate(...inputs, ...outputs, ...shapes);
  const { entry, shared } = compiled(textOf(emulated, inputs));
  expectFit(emulated, shared);
  const names = [...source.inputs, ...source.outputs, ...shaped.map(shapeOf)];
  const arrays = [...inputs, ...outputs, ...shapes].map((each, i) => {
    const memory = new Uint8Array(each.memory());
    const isOutput = outputs.includes(each);
    return { name: names[i]!, at: ptr(memory), bytes: memory.length, isOutput };
  });
  const groups = launch.grid.map((threads, i) => Math.ceil(threads / launch.threadGroup[i]!));
  const fault = emulator().emulate(
    Buffer.from(`${source.name} (${language})\0`),
    entry,
    words(arrays),
    arrays.length,
    // An empty array has no address.
    words(shared.length > 0 ? shared : arrays),
    shared.length,
    Int32Array.from(groups),
    launch.threadGroup[0],
    source.sharedMemory ?? 0,
    Number(/^#define CLUSTER (\d+)/m.exec(source.header ?? "")?.[1] ?? 1),
    language === "cuda",
    emulated.inOrder,
  );
  if (fault !== null) throw new Error(String(fault));
  return outputs;
}

/** As many as MLX passes. */
const MOST_AXES = 10;
const shapeOf = (input: string) => `${input}_shape`;

/** Those whose shapes the source names: MLX passes them to the kernel. */
const shapedInputs = ({ inputs, source }: KernelSource) =>
  inputs.filter((name) => source.includes(shapeOf(name)));

const texts = new Map<string, Buffer>();

/** As `Named` of emulator/lanes.cpp. */
function words(list: readonly Named[]): BigUint64Array {
  const each = list.flatMap(({ name, at, bytes, isOutput = false }) => {
    const text = texts.getOrInsertComputed(name, () => Buffer.from(`${name}\0`));
    return [ptr(text), at, bytes, Number(isOutput)];
  });
  return BigUint64Array.from(each, BigInt);
}

/** What Apple's GPUs and MLX's launches on them ask for beyond what kernels say. */
function expectFit({ language, source, launch }: Emulated, shared: readonly Named[]): void {
  if (language === "cuda") return;
  const bytes = shared.reduce((sum, each) => sum + each.bytes, source.sharedMemory ?? 0);
  if (bytes > MOST_SHARED_BYTES) {
    throw new Error(`${source.name}: ${bytes} bytes of threadgroup memory are too many`);
  }
  if (launch.grid.some((threads, i) => threads % launch.threadGroup[i]! !== 0)) {
    throw new Error(`${source.name}: its last groups would have fewer threads than the others`);
  }
}

/** The same elements in row order: a copy only if they were not. */
function contiguous(x: MlxArray): MlxArray {
  return op("mlx_contiguous", x.handle, false);
}

function textOf(emulated: Emulated, inputs: readonly MlxArray[]): string {
  const { text, name, values } = (emulated.language === "cuda" ? cudaText : metalText)(
    emulated,
    inputs,
  );
  return `#include "${emulated.language}.h"
${text}
extern "C" void enter(void** arrays) { ${name}(${values.join(", ")}); }
extern "C" void* entry() { return reinterpret_cast<void*>(enter); }
`;
}

const types: Partial<Record<Dtype, string>> = {
  bfloat16: "__nv_bfloat16",
  float16: "__half",
  float32: "float",
  int32: "int",
  uint32: "unsigned",
};

const SHAPE = "const Shape";

/** Headers whose functions the emulator has. */
const own = [cudaInstructions, bulk, cluster, tensorCopy, wgmma];

function cudaText({ source, launch }: Emulated, inputs: readonly MlxArray[]) {
  const { outputs, template = {} } = launch;
  const constants = Object.entries(template).map(([name, value]) =>
    typeof value === "string"
      ? `using ${name} = ${types[value]};`
      : `constexpr ${typeof value === "number" ? "int" : "bool"} ${name} = ${value};`,
  );
  const parameters = [
    ...source.inputs.map((name, i) => [`const ${types[inputs[i]!.dtype]}*`, name]),
    ...source.outputs.map((name, i) => [`${types[outputs[i]!.dtype]}*`, name]),
    ...shapedInputs(source).map((name) => [SHAPE, shapeOf(name)]),
  ];
  const text = `
${own.reduce((header, each) => header?.replace(each, ""), source.header)}
${constants.join("\n")}
static void kernel(${parameters.map((each) => each.join(" ")).join(", ")}) {
${source.source}
}`;
  const values = parameters.map(([type], i) =>
    type === SHAPE ? `*static_cast<${type}*>(arrays[${i}])` : `static_cast<${type}>(arrays[${i}])`,
  );
  return { text, name: "kernel", values };
}

/** As it is but for SHARED, which for Metal's compiler is the word for what pointers point to as well. */
function metalText({ source, launch }: Emulated, inputs: readonly MlxArray[]) {
  const whole = { kernel: source, launch, inputs };
  const text = `
${source.header}
#undef SHARED
#define SHARED SHARED_MEMORY
${renderKernel(whole)}`;
  const count = inputs.length + launch.outputs.length;
  const values = Array.from({ length: count }, (_, i) => `Any{arrays[${i}]}`);
  const positions = attributesOf(source.source).map(({ name }) => `attributes::${name}()`);
  return { text, name: uniqueName(whole), values: [...values, ...positions] };
}

/** An array, as C++ and the compiled kernel's `shared` have it. */
type Named = { name: string; at: number; bytes: number; isOutput?: boolean };
type Compiled = { entry: Pointer; shared: readonly Named[] };

const libraries = new Map<string, Compiled>();

function compiled(text: string): Compiled {
  return libraries.getOrInsertComputed(text, () => {
    const library = libraryOf(text);
    const { symbols } = dlopen(library, { entry: { args: [], returns: "ptr" } });
    const entry = Number(symbols.entry()) as Pointer;
    return { entry, shared: sharedArrays(library, entry) };
  });
}

// Before each access, and where an index or an address is none, functions of the emulator are called.
const kernelFlags = ["-Og", "-fsanitize=thread", "-fsanitize=bounds,alignment", "-nostdlib"];

/** Beside the emulator, by what it is made of: compiling takes longer than most kernels run. */
function libraryOf(text: string): string {
  const { file, kernels } = emulator();
  const key = createHash("sha256")
    .update([file, ...kernelFlags, text].join("\n"))
    .digest("hex");
  const library = join(kernels, `${key.slice(0, 32)}.so`);
  if (existsSync(library)) {
    utimesSync(library, new Date(), new Date());
    return library;
  }
  const folder = mkdtempSync(join(kernels, "unfinished-"));
  try {
    const [source, unfinished] = [join(folder, "kernel.cpp"), join(folder, "kernel.so")];
    writeFileSync(source, text);
    // What it needs of libraries the emulator has loaded.
    compile(unfinished, ...kernelFlags, "-I", sources, source, file, "-lgcc");
    renameSync(unfinished, library);
  } finally {
    rmSync(folder, { recursive: true });
  }
  return library;
}

/** A kernel's arrays of shared memory, where they were loaded, in their order there. */
function sharedArrays(file: string, entry: number): Named[] {
  const symbols = elfSymbols(readFileSync(file));
  const offset = entry - symbols.find(({ name }) => name === "enter")!.at;
  const arrays = symbols.flatMap(({ name, at, bytes }) => {
    // A variable of a function's: `_ZZ`, the function, `E`, the length of its name, its name.
    const [, length, rest] = /^_ZZ.*?E(\d+)([a-z]\w*)$/.exec(name) ?? [];
    return rest ? [{ name: rest.slice(0, Number(length)), at: at + offset, bytes }] : [];
  });
  return arrays.sort((a, b) => a.at - b.at);
}

/** As `nm -S` lists them, which would be a process for each of hundreds of kernels. */
function elfSymbols(file: Buffer): Named[] {
  const word = (at: number) => Number(file.readBigUInt64LE(at));
  const sections = Array.from({ length: file.readUInt16LE(0x3c) }, (_, i) => {
    const at = word(0x28) + i * file.readUInt16LE(0x3a);
    const [type, link] = [file.readUInt32LE(at + 4), file.readUInt32LE(at + 0x28)];
    return { type, first: word(at + 0x18), bytes: word(at + 0x20), link };
  });
  const table = sections.find(({ type }) => type === 2)!; // SHT_SYMTAB
  const names = sections[table.link]!.first;
  return Array.from({ length: table.bytes / 24 }, (_, i) => {
    const at = table.first + i * 24;
    const name = names + file.readUInt32LE(at);
    const text = file.toString("latin1", name, file.indexOf(0, name));
    return { name: text, at: word(at + 8), bytes: word(at + 16) };
  });
}

const sources = join(import.meta.dir, "emulator");
const emulatorFlags = ["-O2", "-fno-semantic-interposition"];

/** In the cache, by what it is made of. */
function emulatorFile(): string {
  const contents = readdirSync(sources)
    .sort()
    .map((name) => readFileSync(join(sources, name)));
  const key = createHash("sha256").update(emulatorFlags.join(" "));
  for (const each of contents) key.update(each);
  return join(cacheDirectory(), "emulator", `${key.digest("hex").slice(0, 16)}.so`);
}

let opened: ReturnType<typeof openEmulator> | undefined;

/** Compiled once for all kernels. */
function emulator() {
  opened ??= openEmulator();
  return opened;
}

function openEmulator() {
  const file = emulatorFile();
  if (!existsSync(file)) {
    const files = ["lanes.cpp", "memory.cpp", "instructions.cpp"];
    const unfinished = `${file}.${process.pid}`;
    mkdirSync(dirname(file), { recursive: true });
    compile(unfinished, ...emulatorFlags, ...files.map((name) => join(sources, name)));
    renameSync(unfinished, file);
  }
  const kernels = join(dirname(file), "kernels");
  mkdirSync(kernels, { recursive: true });
  forgetUnused(kernels);
  const arrays = ["buffer", "ptr", "buffer", "i32", "buffer", "i32", "buffer", "i32"] as const;
  const { emulate } = dlopen(file, {
    emulate: { args: [...arrays, "i32", "i32", "bool", "bool"], returns: "cstring" },
  }).symbols;
  return { file, kernels, emulate };
}

const UNUSED_MS = 14 * 24 * 3600 * 1000;

/** Kernels that were changed leave behind what they were compiled to, and processes that were killed what they had begun. */
function forgetUnused(kernels: string): void {
  for (const name of readdirSync(kernels)) {
    const path = join(kernels, name);
    const used = statSync(path, { throwIfNoEntry: false });
    if (used && Date.now() - used.mtimeMs > UNUSED_MS)
      rmSync(path, { recursive: true, force: true });
  }
}

/** Makes a library. */
function compile(library: string, ...args: string[]): void {
  const flags = ["-std=c++20", "-w", "-fPIC", "-shared", "-o", library];
  const { success, stderr } = Bun.spawnSync(["c++", ...flags, ...args]);
  if (!success) throw new Error(stderr.toString());
}
