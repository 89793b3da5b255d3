import type { Backend } from "../../ffi/native.ts";
import { array } from "../mlx/array.ts";
import type { Runtime } from "../mlx/runtime.ts";
import { cpuDevice } from "./cpu.ts";
import { cudaDevice } from "./cuda.ts";
import type { Device } from "./device.ts";
import { metalDevice } from "./metal.ts";

const devices: Record<Backend, (info: Runtime["device"]) => Omit<Device, "sketch">> = {
  cpu: cpuDevice,
  cuda: cudaDevice,
  metal: metalDevice,
};

/** Steps of a sketch are never recorded, and wait for no GPU. */
const unrecorded: Pick<Device, "stage" | "trace"> = {
  stage: (values) => array(values),
  trace: (build) => ({ call: (...inputs) => [...build([...inputs])], free() {} }),
};

/** The device of an opened MLX, and what MLX says of it. Its holder frees it. */
export function openDevice(backend: Backend, info: Runtime["device"] = {}): Device {
  const open = () => devices[backend](info);
  return { ...open(), sketch: () => ({ ...open(), ...unrecorded, isSketch: true }) };
}
