// Formats the engine's report on the machine for a terminal.
import type { EngineReport } from "../engine/protocol.ts";

export function describeEngine(report: EngineReport, library: string): string {
  const { blas, memory } = report;
  const rows = {
    device: `${report.deviceName} (${report.backend})`,
    memory:
      `${gib(memory.totalBytes)} GiB, models may use ${gib(memory.usableBytes)}, ` +
      `${gib(memory.roomBytes)} are free`,
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
