import type { Backend } from "../../ffi/native.ts";
import { cpuDevice } from "./cpu.ts";
import { cudaDevice } from "./cuda.ts";
import type { Device } from "./device.ts";
import { metalDevice } from "./metal.ts";

const devices: Record<Backend, () => Device> = {
  cpu: cpuDevice,
  cuda: cudaDevice,
  metal: metalDevice,
};

/** The device of an opened MLX. Its holder frees it. */
export function openDevice(backend: Backend): Device {
  return devices[backend]();
}
