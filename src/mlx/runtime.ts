// Opens MLX on this thread and reports its device. Only the thread that opened MLX may use it: in the server, that is
// the engine Worker.
import { join } from "node:path";
import { catchErrors, check, takeHandle } from "../../ffi/error.ts";
import { gpuAttributes } from "../../ffi/gpu-attributes.ts";
import { mlxc, openLibrary } from "../../ffi/lib.ts";
import { cText, type Pointer, readText } from "../../ffi/memory.ts";
import { type Backend, cacheDirectory } from "../../ffi/native.ts";
import { out } from "../../ffi/slot.ts";
import { takeText, takeTexts } from "../../ffi/text.ts";
import { setVariables } from "../../ffi/variables.ts";
import { Stream } from "./stream.ts";

export type Runtime = {
  backend: Backend;
  mlxVersion: string;
  /** Device properties reported by MLX and CUDA: name, memory, architecture, multiprocessors. */
  device: Record<string, string | number>;
  stream: Stream;
};

/** Opens MLX. `device: "cpu"` ignores the machine's GPU. */
export function openMlx(
  library: string,
  { device, trace = false }: { device?: "cpu" | "gpu"; trace?: boolean } = {},
): Runtime {
  openLibrary(library, { trace });
  catchErrors();
  const gpu = flag("mlx_metal_is_available") ? "metal" : flag("mlx_cuda_is_available") && "cuda";
  const backend: Backend = device !== "cpu" && gpu ? gpu : "cpu";
  if (device === "gpu" && backend === "cpu")
    throw new Error("MLX sees no GPU on this machine: use --backend cpu");
  const handle = mlxc.mlx_device_new_type(backend === "cpu" ? 0 : 1, 0)!;
  try {
    check("mlx_set_default_device", mlxc.mlx_set_default_device(handle));
    // Disables compilation on a CPU, where MLX compiles closures by running a C++ compiler.
    if (backend === "cpu") check("mlx_disable_compile", mlxc.mlx_disable_compile());
    const stream = new Stream(backend === "cpu" ? "cpu" : "gpu");
    stream.use();
    const attributes = backend === "cuda" ? gpuAttributes() : {};
    const info = { ...deviceInfo(handle), ...attributes };
    const runtime = { backend, mlxVersion: mlxVersion(), device: info, stream };
    if (backend === "cuda") keepKernels(runtime);
    return runtime;
  } finally {
    mlxc.mlx_device_free(handle);
  }
}

/** Caches compiled kernels on disk, per MLX version and GPU architecture. Call it before the first compilation. */
function keepKernels({ mlxVersion, device }: Runtime): void {
  const folder = `${mlxVersion}-${device.architecture}`;
  setVariables({ MLX_PTX_CACHE_DIR: join(cacheDirectory(), "ptx", folder) });
}

function flag(symbol: "mlx_metal_is_available" | "mlx_cuda_is_available"): boolean {
  check(symbol, mlxc[symbol](out.view));
  return out.take() === 1;
}

function mlxVersion(): string {
  return takeText(takeHandle("mlx_version", mlxc.mlx_version(out.view)));
}

/** Returns MLX's device information, with the GPU memory that is free now. */
export function gpuInfo(): Runtime["device"] {
  const handle = mlxc.mlx_device_new_type(1, 0)!;
  try {
    return deviceInfo(handle);
  } finally {
    mlxc.mlx_device_free(handle);
  }
}

function deviceInfo(device: Pointer): Runtime["device"] {
  const info = takeHandle("mlx_device_info_get", mlxc.mlx_device_info_get(out.view, device));
  const keys = takeHandle(
    "mlx_device_info_get_keys",
    mlxc.mlx_device_info_get_keys(out.view, info),
  );
  const found: Runtime["device"] = {};
  for (const key of takeTexts(keys)) found[key] = deviceValue(info, cText(key));
  mlxc.mlx_device_info_free(info);
  return found;
}

function deviceValue(info: Pointer, key: Uint8Array): string | number {
  check("mlx_device_info_is_string", mlxc.mlx_device_info_is_string(out.view, info, key));
  if (out.take() === 1) {
    check("mlx_device_info_get_string", mlxc.mlx_device_info_get_string(out.view, info, key));
    return readText(out.takePointer());
  }
  check("mlx_device_info_get_size", mlxc.mlx_device_info_get_size(out.view, info, key));
  return out.take();
}
