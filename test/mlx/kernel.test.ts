import { expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { check, MlxError } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { backend } from "../../ffi/native.ts";
import { array, liveArrays } from "../../src/mlx/array.ts";
import { Kernel, type KernelSource } from "../../src/mlx/kernel.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

const mlx = useMlx();

/** Scales by a template argument and counts by an input; one body for each language. */
const scale = (index: string): KernelSource => ({
  name: "scale_rows",
  inputs: ["x", "shift"],
  outputs: ["y", "z"],
  source: `
    auto i = ${index};
    if (i < N) {
      y[i] = T(float(x[i]) * FACTOR + float(shift[0]));
      z[i] = NEGATE ? -int(i) : int(i);
    }`,
});

const launch = {
  outputs: [
    { shape: [2, 3], dtype: "float16" },
    { shape: [6], dtype: "int32" },
  ],
  grid: [32, 1, 1],
  threadGroup: [32, 1, 1],
  template: { T: "float16", N: 6, FACTOR: 3, NEGATE: true },
} as const;

test("a custom kernel runs on its device, and elsewhere is refused with the device's name", () => {
  using _ = new Scope();
  const x = array([1, 2, 3, 4, 5, 6], [2, 3], "float16");
  const run = (language: "cuda" | "metal") => {
    const index =
      language === "cuda" ? "blockIdx.x * blockDim.x + threadIdx.x" : "thread_position_in_grid.x";
    const kernel = new Kernel(language, scale(index));
    const configured = kernel.configure(launch);
    try {
      return configured.call(x, array([0.5])).map((output) => output.numbers());
    } finally {
      configured.free();
      kernel.free();
    }
  };
  for (const language of ["cuda", "metal"] as const) {
    if (mlx.backend === language) {
      expect(run(language)).toEqual([
        [3.5, 6.5, 9.5, 12.5, 15.5, 18.5],
        [-0, -1, -2, -3, -4, -5].map((value) => value + 0),
      ]);
    } else {
      expect(() => run(language)).toThrow(MlxError);
      expect(() => run(language)).toThrow(new RegExp(`${language}.*No ${language} back-end`, "i"));
    }
  }
});

test("a kernel that could not be made leaves no array behind", () => {
  using _ = new Scope();
  const before = liveArrays();
  const other = mlx.backend === "cuda" ? "metal" : "cuda";
  expect(() => new Kernel(other, scale("0")).configure(launch).call()).toThrow();
  expect(liveArrays()).toBe(before);
});

test.skipIf(process.platform !== "linux")(
  "of an array that no kernel makes there is nothing to compile",
  () => {
    using _ = new Scope();
    const { handle } = array([1]);
    const symbol = "mlx_serve_compile_kernel";
    expect(() => check(symbol, mlxc[symbol](handle))).toThrow("no kernel");
  },
);

test.skipIf(backend() !== "cuda")(
  "what was compiled of a kernel is read at the next start (an NVIDIA GPU is needed)",
  () => {
    const folder = mkdtempSync(join(tmpdir(), "kernels-"));
    const start = () => {
      const script = join(import.meta.dir, "..", "support", "one-kernel.ts");
      const env = { ...process.env, MLX_PTX_CACHE_DIR: folder };
      const { stdout, stderr } = Bun.spawnSync([process.execPath, script], { env });
      return stdout.toString() + stderr.toString();
    };
    try {
      expect(start()).toBe("1,4,9\n");
      const kept = readdirSync(folder).filter((name) => name.startsWith("custom_kernel_squares"));
      expect(kept.map((name) => name.replace(/^.*\./, "")).sort()).toEqual(["ptx", "txt"]);
      expect(start()).toBe("1,4,9\n");
      writeFileSync(join(folder, kept.find((name) => name.endsWith(".ptx"))!), "no code");
      expect(start()).toContain("Failed to load compiled custom_kernel_squares");
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
);
