// Compiles the CUDA kernels without a GPU: `npm run -s check:cuda`, or `-- latent` for those with that in their names.
// Every kernel is expanded as MLX does and compiled to machine code by NVIDIA's compiler, which finds errors, launches
// that exceed an SM's registers or shared memory, and wgmma that the assembler serializes. Results are checked by the
// emulator (test/kernels).
import { dlopen, type Pointer, ptr } from "bun:ffi";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as pins from "../ffi/pins.ts";
import type { Dtype } from "../src/mlx/dtype.ts";
import { type Launch, recordLaunches } from "./check-kernels/launches.ts";
import { fetchWheel, unpack } from "./setup/fetch.ts";

/** Registers per SM, since Ampere. */
const REGISTERS = 65_536;
/** Shared memory per CTA: static, and the dynamic part that MLX may request. */
const STATIC_BYTES = 48 * 1024;
const DYNAMIC_BYTES = 99 * 1024;
/** Kernels only for compute capability 9.0, which has more. */
const HOPPER = [
  "mlx_serve_dense_product",
  "mlx_serve_expert_product",
  "mlx_serve_prompt_heads",
  "mlx_serve_prompt_product",
  "mlx_serve_streamed_vector",
  "mlx_serve_scan_tokens",
  "mlx_serve_warpgroup_chunks",
  "mlx_serve_warpgroup_product",
];
const HOPPER_BYTES = 227 * 1024;
/** Above this, MLX raises the limit of dynamic shared memory. */
const RAISED_BYTES = 48_000;

const types: Partial<Record<Dtype, string>> = {
  float32: "float",
  float16: "__half",
  bfloat16: "__nv_bfloat16",
  int32: "int",
  uint32: "unsigned",
};

const wanted = process.argv.slice(2);
const folder = await mkdtemp(join(tmpdir(), "mlx-serve-cuda-"));
try {
  if (`${process.platform}-${process.arch}` !== "linux-x64") {
    throw new Error("check:cuda runs only on Linux with x64");
  }
  const compile = await unpackCompiler();
  const kernels = Map.groupBy(recordLaunches("cuda"), ({ kernel }) => kernel.name);
  const isAsked = (name: string) =>
    wanted.length === 0 || wanted.some((each) => name.includes(each));
  for (const [name, launches] of kernels) {
    if (!isAsked(name)) continue;
    if (!check(compile, name, launches)) process.exitCode = 1;
  }
} catch (error) {
  console.error(`mlx-serve: ${error instanceof Error ? error.message : error}`);
  process.exitCode = 1;
} finally {
  await rm(folder, { recursive: true });
}

type Compiled = { isDone: boolean; log: string };

async function unpackCompiler(): Promise<(text: string) => Compiled> {
  for (const pin of [pins.nvrtc, pins.cudaHeaders]) {
    await unpack("zipfile", await fetchWheel(pin), folder);
  }
  const toolkit = join(folder, "nvidia", "cu13");
  // The compiler loads the other library by name, so it must already be loaded.
  dlopen(join(toolkit, "lib", pins.nvrtcBuiltins), {
    __nvrtc_builtins__13_0_getArchBuiltins: { args: [], returns: "ptr" },
  });
  const { symbols: nvrtc } = dlopen(join(toolkit, "lib", pins.nvrtcLibrary), {
    nvrtcCreateProgram: { args: ["ptr", "ptr", "ptr", "i32", "ptr", "ptr"], returns: "i32" },
    nvrtcCompileProgram: { args: ["ptr", "i32", "ptr"], returns: "i32" },
    nvrtcGetProgramLogSize: { args: ["ptr", "ptr"], returns: "i32" },
    nvrtcGetProgramLog: { args: ["ptr", "ptr"], returns: "i32" },
    nvrtcDestroyProgram: { args: ["ptr"], returns: "i32" },
  });
  const options = [
    "--gpu-architecture=sm_90a",
    "--std=c++20",
    // Lambdas that take lambdas must not become host functions.
    "--device-as-default-execution-space",
    `-I${join(toolkit, "include")}`,
    "--ptxas-options=--verbose",
  ].map((option) => Buffer.from(`${option}\0`));
  const addresses = BigUint64Array.from(options, (option) => BigInt(ptr(option)));
  return (text) => {
    const program = new BigUint64Array(1);
    nvrtc.nvrtcCreateProgram(program, Buffer.from(`${text}\0`), null, 0, null, null);
    const handle = Number(program[0]) as Pointer;
    const isDone = nvrtc.nvrtcCompileProgram(handle, options.length, addresses) === 0;
    const size = new BigUint64Array(1);
    nvrtc.nvrtcGetProgramLogSize(handle, size);
    const log = Buffer.alloc(Number(size[0]));
    nvrtc.nvrtcGetProgramLog(handle, log);
    nvrtc.nvrtcDestroyProgram(program);
    return { isDone, log: log.toString() };
  };
}

/** One kernel with all its launches. */
function check(
  compile: (text: string) => Compiled,
  name: string,
  launches: readonly Launch[],
): boolean {
  const instances = new Map<string, { launch: Launch; name: string }>();
  for (const launch of launches) {
    const text = render(launch, "");
    if (!instances.has(text)) instances.set(text, { launch, name: `${name}_${instances.size}` });
  }
  const functions = Array.from(instances.values(), ({ launch, name }) => render(launch, name));
  const headers = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n";
  const { isDone, log } = compile([headers, launches[0]!.kernel.header, ...functions].join("\n"));
  if (!isDone) {
    console.error(log);
    return false;
  }
  const serialized = log.match(/.*wgmma.mma_async instructions are serialized.*/g) ?? [];
  for (const line of serialized) console.error(line);
  const used = usedBy(log);
  let [registers, spilled, isGood] = [0, 0, serialized.length === 0];
  for (const { launch, name: instance } of instances.values()) {
    const own = used.get(instance)!;
    const threads = launch.launch.threadGroup.reduce((a, b) => a * b);
    const dynamic = launch.kernel.sharedMemory ?? 0;
    const fits =
      Math.ceil(own.registers / 8) * 8 * threads <= REGISTERS &&
      own.sharedBytes <= STATIC_BYTES &&
      (own.sharedBytes + dynamic <= STATIC_BYTES || dynamic > RAISED_BYTES) &&
      own.sharedBytes + dynamic <=
        (HOPPER.some((each) => name.startsWith(each)) ? HOPPER_BYTES : DYNAMIC_BYTES);
    if (!fits) {
      const asked = `${own.registers} registers for ${threads} threads, ${own.sharedBytes} and ${dynamic} bytes`;
      console.error(`${instance} cannot be launched with ${asked}: ${describe(launch)}`);
      isGood = false;
    }
    registers = Math.max(registers, own.registers);
    spilled = Math.max(spilled, own.spilled);
    if (own.spilled > 0)
      console.log(`${instance} spills ${own.spilled} bytes: ${describe(launch)}`);
  }
  const count = `${instances.size} instances, at most ${registers} registers`;
  console.log(`${name}: ${count}, ${spilled} bytes spilled`);
  return isGood;
}

/** The assembler's report per function. */
function usedBy(
  log: string,
): Map<string, { registers: number; spilled: number; sharedBytes: number }> {
  const number = (text: string, pattern: RegExp) => Number(pattern.exec(text)?.[1] ?? 0);
  const parts = log.split("Compiling entry function '").slice(1);
  return new Map(
    parts.map((part) => [
      part.slice(0, part.indexOf("'")),
      {
        registers: number(part, /Used (\d+) registers/),
        spilled: number(part, /(\d+) bytes spill stores/),
        sharedBytes: number(part, /(\d+) bytes smem/),
      },
    ]),
  );
}

/** The source as MLX compiles it, except that template arguments are declared in the function. */
function render({ kernel, launch, inputs }: Launch, name: string): string {
  const constants = Object.entries(launch.template ?? {}).map(([constant, value]) => {
    if (typeof value === "string") return `using ${constant} = ${typeOf(value)};`;
    return `constexpr ${typeof value === "number" ? "int" : "bool"} ${constant} = ${value};`;
  });
  const passed = inputs.flatMap(({ dtype }, i) => {
    const input = kernel.inputs[i]!;
    const shape = `${input}_shape`;
    return [
      `const ${typeOf(dtype)}* ${input}`,
      ...(kernel.source.includes(shape) ? [`const __grid_constant__ Shape ${shape}`] : []),
    ];
  });
  const made = launch.outputs.map(({ dtype }, i) => `${typeOf(dtype)}* ${kernel.outputs[i]}`);
  const head = `extern "C" __global__ void ${name}(${[...passed, ...made].join(", ")})`;
  return `${head} {\n${constants.join("\n")}\n${kernel.source}\n}`;
}

function describe({ launch }: Launch): string {
  return JSON.stringify(launch.template ?? {});
}

function typeOf(dtype: Dtype): string {
  const type = types[dtype];
  if (!type) throw new Error(`unknown type ${dtype}: add CUDA's name for it`);
  return type;
}
