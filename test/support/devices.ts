// Devices for tests: one of each kind, made when it is first asked for. Any can be asked to compute by MLX's
// operations, wherever MLX runs; only kernels of its own need the real thing.
import type { Backend } from "../../ffi/native.ts";
import { type Device, untraced } from "../../src/device/device.ts";
import { openDevice } from "../../src/device/open.ts";
import { PlainAttention } from "../../src/self-test/plain-attention.ts";
import { PlainLatentAttention } from "../../src/self-test/plain-latent-attention.ts";
import { plainRecurrence } from "../../src/self-test/plain-recurrence.ts";

const made = new Map<Backend | "plain", Device>();

export function deviceOf(backend: Backend): Device {
  return made.getOrInsertComputed(backend, () => openDevice(backend));
}

/** A GPU's way of running steps, on a CPU: plain arithmetic in the place of its kernels. */
export function plainGpu(): Device {
  return made.getOrInsertComputed("plain", () => {
    const { stage } = openDevice("cpu");
    return {
      ...openDevice("metal"),
      kvType: () => "float32",
      attention: (shape) => new PlainAttention(shape),
      latentAttention: (shape) => new PlainLatentAttention(shape),
      recurrence: () => plainRecurrence,
      trace: untraced,
      stage,
    };
  });
}

export function freeDevices(): void {
  for (const device of made.values()) device.free();
  made.clear();
}
