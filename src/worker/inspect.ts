// Reports the engine's device and its matmul throughput.
import type { Blas } from "../../ffi/blas.ts";
import { deviceMemory, roomOf } from "../device/memory.ts";
import type { EngineReport } from "../engine/protocol.ts";
import { evaluate } from "../mlx/array.ts";
import { matmul } from "../mlx/ops.ts";
import { key, normal } from "../mlx/random.ts";
import type { Runtime } from "../mlx/runtime.ts";
import { Scope } from "../mlx/scope.ts";

export function inspect(runtime: Runtime, blas: Blas | undefined, measure: boolean): EngineReport {
  const { backend, mlxVersion, device } = runtime;
  // The device is not opened: the report must also work on a device that cannot run models.
  const facts = deviceMemory[backend](device).facts();
  const { totalBytes, usableBytes } = facts;
  return {
    backend,
    mlxVersion,
    device,
    deviceName: String(device.device_name ?? device.architecture ?? "unknown"),
    blas: backend === "cpu" ? blas : undefined,
    memory: { totalBytes, usableBytes, roomBytes: roomOf(facts) },
    matmulGflops: measure ? matmulGflops() : undefined,
  };
}

/** Measures a matmul of (512, 576) @ (576, 1536); returns the best of ten runs. */
export function matmulGflops(
  [m, k, n]: readonly [number, number, number] = [512, 576, 1536],
): number {
  using _ = new Scope();
  const a = normal(key(1), [m, k]);
  const b = normal(key(2), [k, n]);
  evaluate(a, b);
  const times = Array.from({ length: 10 }, () => {
    using _product = new Scope();
    const start = Bun.nanoseconds();
    evaluate(matmul(a, b));
    return Bun.nanoseconds() - start;
  });
  return (2 * m * k * n) / Math.min(...times);
}
