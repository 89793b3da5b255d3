// Reads attributes of the first GPU from CUDA's driver: only attributes that MLX does not report.
import { dlopen } from "bun:ffi";
import { out } from "./slot.ts";

/** Numbers of the attributes in `CUdevice_attribute`. */
const attributes = { multiprocessors: 16 } as const;

/** Returns the attributes that the driver knows; none without a driver. */
export function gpuAttributes(): Partial<Record<keyof typeof attributes, number>> {
  try {
    const { symbols: driver, close } = dlopen("libcuda.so.1", {
      cuInit: { args: ["u32"], returns: "i32" }, // CUresult cuInit(unsigned)
      cuDeviceGet: { args: ["buffer", "i32"], returns: "i32" }, // CUresult cuDeviceGet(int*, int)
      cuDeviceGetAttribute: { args: ["buffer", "i32", "i32"], returns: "i32" }, // CUresult cuDeviceGetAttribute(int*, CUdevice_attribute, int)
    });
    driver.cuInit(0);
    driver.cuDeviceGet(out.view, 0);
    const device = out.take();
    const found = Object.entries(attributes).flatMap(([name, number]) => {
      const isKnown = driver.cuDeviceGetAttribute(out.view, number, device) === 0;
      const value = out.take();
      return isKnown ? [[name, value]] : [];
    });
    close();
    return Object.fromEntries(found);
  } catch {
    return {};
  }
}
