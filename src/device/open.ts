import type { Backend } from "../../ffi/native.ts";
import type { MakeKernel } from "../mlx/kernel.ts";
import type { Runtime } from "../mlx/runtime.ts";
import { cpuDevice } from "./cpu.ts";
import { cudaDevice } from "./cuda.ts";
import {
  type Device,
  type DeviceKind,
  type HostTransfer,
  type StepPolicy,
  untraced,
} from "./device.ts";
import { hostValues } from "./gpu.ts";
import { deviceMemory } from "./memory.ts";
import { metalDevice } from "./metal.ts";

type Open = (info: Runtime["device"], make?: MakeKernel) => DeviceKind;

const devices: Record<Backend, Open> = {
  cpu: cpuDevice,
  cuda: cudaDevice,
  metal: metalDevice,
};

/** Transfer and tracing of a sketch, which neither records steps nor computes. */
const unrecorded: HostTransfer & Pick<StepPolicy, "trace" | "beginsEarly"> = {
  ...hostValues,
  trace: untraced,
  beginsEarly: () => false,
};

/** Opens the device; `info` is MLX's description of it. The caller frees it. */
export function openDevice(
  backend: Backend,
  info: Runtime["device"] = {},
  make?: MakeKernel,
): Device {
  const open = () => devices[backend](info, make);
  return {
    ...open(),
    memory: deviceMemory[backend](info),
    sketch: () => ({ ...open(), ...unrecorded, isSketch: true }),
  };
}
