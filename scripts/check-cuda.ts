// The kernels' CUDA side, where there is no GPU: `npm run -s check:cuda`, or `-- latent` for those with that in their
// names. Every kernel is written out as MLX would, and compiled to machine code by NVIDIA's own compiler: its faults are
// found, launches that no multiprocessor has the registers or the shared memory for, and products of warpgroups that it
// cannot let run while threads go on. What a kernel computes, the emulator says (test/kernels).
import { dlopen, type Pointer, ptr } from "bun:ffi";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as pins from "../ffi/pins.ts";
import type { Dtype } from "../src/mlx/dtype.ts";
import { type Launch, recordLaunches } from "./check-kernels/launches.ts";
import { fetchWheel, unpack } from "./setup/fetch.ts";

/** Of a multiprocessor, on GPUs from Ampere on. */
const REGISTERS = 65_536;
/** Of a group: what a kernel declares, and what MLX may be asked for beside it. */
const STATIC_BYTES = 48 * 1024;
const DYNAMIC_BYTES = 99 * 1024;
/** Kernels for compute capability 9.0 alone, which has more. */
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
/** Above this MLX asks that a group may have more than the first. */
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
    throw new Error("check:cuda has a compiler for Linux with x64 alone");
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
  // The compiler asks for the other library by its name alone: it must be loaded by then.
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
    // Lambdas that take lambdas are no functions of the host.
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

/** One kernel, each way that it is launched. */
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

/** What the assembler says of each function. */
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

/** As MLX hands it to the compiler, but that template arguments are declared in the function. */
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
  if (!type) throw new Error(`no kernel has had ${dtype} so far: add CUDA's name of it`);
  return type;
}
