// Measures the size and start-up time of an executable: `npm run -s bench:startup [-- <file>]`.
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const executable = resolve(
  process.argv[2] ?? join(import.meta.dir, "..", "..", "dist", "mlx-serve"),
);
const cache = mkdtempSync(join(tmpdir(), "startup-"));

function timeMs(verb: string): number {
  const began = performance.now();
  const env = { ...process.env, MLX_SERVE_CACHE: cache };
  const { exitCode, stderr } = Bun.spawnSync([executable, verb], { env });
  if (exitCode !== 0) throw new Error(stderr.toString());
  return performance.now() - began;
}

const median = (times: number[]) => times.sort((a, b) => a - b)[times.length >> 1]!;
const many = (verb: string) => median(Array.from({ length: 11 }, () => timeMs(verb)));

try {
  const rows = {
    size: `${(statSync(executable).size / 1e6).toFixed(0)} MB`,
    version: `${many("version").toFixed(0)} ms`,
    "doctor, first start": `${timeMs("doctor").toFixed(0)} ms, libraries extracted`,
    "doctor, later": `${many("doctor").toFixed(0)} ms, libraries checked`,
  };
  for (const [name, value] of Object.entries(rows)) console.log(`${name.padEnd(21)}${value}`);
} finally {
  rmSync(cache, { recursive: true });
}
