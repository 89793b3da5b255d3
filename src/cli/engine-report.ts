// What a machine has, as the engine sees it, for a terminal.
import { totalmem } from "node:os";
import type { EngineReport } from "../engine/protocol.ts";

export function describeEngine(report: EngineReport, library: string): string {
  const memory = Number(report.device.memory_size ?? totalmem());
  const { blas } = report;
  const rows = {
    device: `${report.deviceName} (${report.backend})`,
    memory: `${gib(memory)} GiB, MLX may use ${gib(report.memoryLimitBytes)}`,
    mlx: `${report.mlxVersion}, ${library}`,
    blas: blas ? `${blas.name}, ${blas.threads} threads` : "the system's",
    matmul: `${report.matmulGflops?.toFixed(0)} GFLOP/s (512 x 576 x 1536, float32)`,
  };
  return Object.entries(rows)
    .map(([key, value]) => `${key.padEnd(8)}${value}`)
    .join("\n");
}

function gib(bytes: number): string {
  return (bytes / 2 ** 30).toFixed(1);
}
