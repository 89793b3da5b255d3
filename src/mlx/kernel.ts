// Custom kernels in CUDA or Metal source, as operations of MLX's graph. MLX generates the function's signature
// from the names of inputs and outputs and from the template arguments.
import { check, MlxError, ownHandle, takeHandle } from "../../ffi/error.ts";
import { has, mlxc } from "../../ffi/lib.ts";
import { cText, cTextList, type Pointer } from "../../ffi/memory.ts";
import { out } from "../../ffi/slot.ts";
import { ints, type MlxArray, unpackVector, withVector } from "./array.ts";
import { codeOf, type Dtype } from "./dtype.ts";
import { stream } from "./stream.ts";

export type KernelSource = {
  name: string;
  inputs: readonly string[];
  outputs: readonly string[];
  /** Body of the kernel function. */
  source: string;
  /** Source before the kernel function. */
  header?: string;
  /** Whether to copy inputs that are not row-contiguous. Must be false if the kernel writes to its inputs. */
  rowContiguous?: boolean;
  /** Bytes of dynamic shared memory (CUDA only). */
  sharedMemory?: number;
};

export type KernelLaunch = {
  outputs: readonly { shape: readonly number[]; dtype: Dtype }[];
  /** Total number of threads along each axis, not of thread blocks. */
  grid: readonly [number, number, number];
  threadGroup: readonly [number, number, number];
  template?: Readonly<Record<string, Dtype | number | boolean>>;
  /** Number that outputs are filled with before the launch. */
  initValue?: number;
};

export type Language = "cuda" | "metal";

/** Builds a kernel from its source: with MLX, or in tests for an emulator on the CPU. */
export type MakeKernel = (
  language: Language,
  source: KernelSource,
) => { configure(launch: KernelLaunch): Pick<ConfiguredKernel, "call" | "free">; free(): void };

export const makeKernel: MakeKernel = (language, source) => new Kernel(language, source);

let onCompile: (kernel: string) => void = () => {};

/** Sets a callback that runs before a kernel is compiled, which takes seconds the first time on a machine. */
export function watchCompiles(watch: (kernel: string) => void): void {
  onCompile = watch;
}

/** Reports that a kernel is about to be compiled. */
export function tellCompile(kernel: string): void {
  onCompile(kernel);
}

export class Kernel {
  readonly #language: Language;
  readonly #name: string;
  /** Template arguments that this kernel was compiled for. */
  readonly #compiled = new Set<string>();
  #handle: Pointer | null;

  constructor(language: Language, source: KernelSource) {
    this.#language = language;
    this.#name = source.name;
    const inputs = textList(source.inputs);
    const outputs = textList(source.outputs);
    const args = [
      cText(source.name),
      inputs,
      outputs,
      cText(source.source),
      cText(source.header ?? ""),
      source.rowContiguous ?? true,
    ] as const;
    try {
      this.#handle =
        language === "cuda"
          ? ownHandle(
              "mlx_fast_cuda_kernel_new",
              mlxc.mlx_fast_cuda_kernel_new(...args, source.sharedMemory ?? 0),
            )
          : ownHandle("mlx_fast_metal_kernel_new", mlxc.mlx_fast_metal_kernel_new(...args, false));
    } finally {
      mlxc.mlx_vector_string_free(inputs);
      mlxc.mlx_vector_string_free(outputs);
    }
  }

  /** Fixes the launch parameters, so that each execution is a single FFI call. */
  configure(launch: KernelLaunch): ConfiguredKernel {
    if (this.#handle === null) throw new Error("the kernel was freed");
    const template = JSON.stringify(launch.template ?? {});
    const isCompiled = this.#compiled.has(template);
    this.#compiled.add(template);
    const watch = isCompiled ? undefined : () => tellCompile(this.#name);
    return new ConfiguredKernel(this.#language, this.#handle, launch, watch);
  }

  /** Frees the kernel. Free the kernels configured from it first. */
  free(): void {
    if (this.#language === "cuda") mlxc.mlx_fast_cuda_kernel_free(this.#handle);
    else mlxc.mlx_fast_metal_kernel_free(this.#handle);
    this.#handle = null;
  }
}

export class ConfiguredKernel {
  readonly #language: Language;
  readonly #kernel: Pointer;
  #config: Pointer | null;
  /** Callback that runs before the first compilation; undefined after it was called. */
  #onCompile: (() => void) | undefined;

  constructor(
    language: Language,
    kernel: Pointer,
    launch: KernelLaunch,
    onCompile: (() => void) | undefined,
  ) {
    this.#language = language;
    this.#kernel = kernel;
    this.#onCompile = onCompile;
    const config = configOf(language);
    const handle = ownHandle(`mlx_fast_${language}_kernel_config_new`, config.create());
    for (const { shape, dtype } of launch.outputs) {
      config.addOutput(handle, ints(shape), shape.length, codeOf(dtype));
    }
    config.setGrid(handle, ...launch.grid);
    config.setThreadGroup(handle, ...launch.threadGroup);
    if (launch.initValue !== undefined) config.setInitValue(handle, launch.initValue);
    for (const [name, value] of Object.entries(launch.template ?? {})) {
      const key = cText(name);
      if (typeof value === "string") config.addDtype(handle, key, codeOf(value));
      else if (typeof value === "number") config.addInt(handle, key, value);
      else config.addBool(handle, key, value);
    }
    this.#config = handle;
  }

  call(...inputs: readonly MlxArray[]): MlxArray[] {
    const symbol = `mlx_fast_${this.#language}_kernel_apply` as const;
    const status = withVector(inputs, (vector) =>
      mlxc[symbol](out.view, this.#kernel, vector, this.#config, stream),
    );
    const made = unpackVector(takeHandle(symbol, status));
    if (this.#onCompile) {
      this.#onCompile();
      if (this.#language === "cuda" && has("mlx_serve_compile_kernel")) compile(made[0]!);
      this.#onCompile = undefined;
    }
    return made;
  }

  free(): void {
    configOf(this.#language).free(this.#config);
    this.#config = null;
  }
}

/** Compiles a kernel into a disk cache (ffi/cuda/compiled.cpp). If that fails, MLX compiles it at every start. */
function compile(made: MlxArray): void {
  const symbol = "mlx_serve_compile_kernel";
  try {
    check(symbol, mlxc[symbol](made.handle));
  } catch (error) {
    if (!(error instanceof MlxError)) throw error;
  }
}

/** Returns mlx-c's functions for one language; both languages have the same ones. */
function configOf(language: Language) {
  return language === "cuda"
    ? {
        create: mlxc.mlx_fast_cuda_kernel_config_new,
        free: mlxc.mlx_fast_cuda_kernel_config_free,
        addOutput: mlxc.mlx_fast_cuda_kernel_config_add_output_arg,
        setGrid: mlxc.mlx_fast_cuda_kernel_config_set_grid,
        setThreadGroup: mlxc.mlx_fast_cuda_kernel_config_set_thread_group,
        setInitValue: mlxc.mlx_fast_cuda_kernel_config_set_init_value,
        addDtype: mlxc.mlx_fast_cuda_kernel_config_add_template_arg_dtype,
        addInt: mlxc.mlx_fast_cuda_kernel_config_add_template_arg_int,
        addBool: mlxc.mlx_fast_cuda_kernel_config_add_template_arg_bool,
      }
    : {
        create: mlxc.mlx_fast_metal_kernel_config_new,
        free: mlxc.mlx_fast_metal_kernel_config_free,
        addOutput: mlxc.mlx_fast_metal_kernel_config_add_output_arg,
        setGrid: mlxc.mlx_fast_metal_kernel_config_set_grid,
        setThreadGroup: mlxc.mlx_fast_metal_kernel_config_set_thread_group,
        setInitValue: mlxc.mlx_fast_metal_kernel_config_set_init_value,
        addDtype: mlxc.mlx_fast_metal_kernel_config_add_template_arg_dtype,
        addInt: mlxc.mlx_fast_metal_kernel_config_add_template_arg_int,
        addBool: mlxc.mlx_fast_metal_kernel_config_add_template_arg_bool,
      };
}

function textList(texts: readonly string[]): Pointer {
  const bytes = texts.map(cText);
  const symbol = "mlx_vector_string_new_data";
  return ownHandle(symbol, mlxc[symbol](cTextList(bytes), bytes.length));
}
