// Benchmarks a layer's product through MLX with our BLAS against the BLAS of MLX's wheel, interleaved:
// `npm run -s bench:blas`. Linux only: on a Mac, MLX uses Accelerate.
import { readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { openBlas } from "../../ffi/blas.ts";
import { findLibrary } from "../../ffi/native.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { matmulGflops } from "../../src/worker/inspect.ts";

const shapes = [
  [1, 576, 1536],
  [32, 576, 1536],
  [512, 576, 1536],
] as const;
const ROUNDS = 3;

if (process.argv[2] === "measure") {
  const library = findLibrary();
  openBlas(library);
  openMlx(library, { device: "cpu" });
  console.log(JSON.stringify(shapes.map((shape) => matmulGflops(shape))));
} else {
  const packages = join(dirname(findLibrary()), "..", "..");
  const libs = readdirSync(packages).find((name) => name.endsWith(".libs"))!;
  const reference = readdirSync(join(packages, libs)).find((name) => name.startsWith("libblas"))!;
  const kinds = { ours: {}, wheel: { LD_PRELOAD: join(packages, libs, reference) } };
  const best = { ours: [0, 0, 0], wheel: [0, 0, 0] };
  for (let round = 0; round < ROUNDS; round++) {
    for (const kind of ["ours", "wheel"] as const) {
      const found = measure(kinds[kind]);
      best[kind] = best[kind].map((gflops, i) => Math.max(gflops, found[i]!));
    }
  }
  console.log(`sgemm, GFLOP/s, the best of ${ROUNDS} rounds`);
  shapes.forEach((shape, i) => {
    const [ours, wheel] = [best.ours[i]!, best.wheel[i]!];
    const name = shape.join(" x ").padEnd(16);
    const ratio = (ours / wheel).toFixed(0);
    console.log(`${name} ours ${ours.toFixed(1)}  wheel ${wheel.toFixed(1)}  ratio ${ratio}`);
  });
}

/** In a separate process, since the loader binds a BLAS for good. */
function measure(env: Record<string, string>): number[] {
  const { stdout } = Bun.spawnSync([process.execPath, import.meta.path, "measure"], {
    env: { ...process.env, ...env },
    stderr: "inherit",
  });
  return JSON.parse(stdout.toString());
}
