import { expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { openBlas } from "../../ffi/blas.ts";
import { findLibrary } from "../../ffi/native.ts";

const library = findLibrary();

test("a system's library without the shim has no BLAS of ours", () => {
  expect(openBlas("libm.so.6")).toBeUndefined();
});

test("a wrong number of threads is refused by name", () => {
  for (const threads of ["0", "1.5", "many"]) {
    expect(() => openBlas(library, { MLX_SERVE_THREADS: threads })).toThrow("MLX_SERVE_THREADS");
  }
});

// On a Mac MLX uses Accelerate.
if (process.platform === "linux") {
  test("OpenBLAS has a thread a core, or as many as the user says", () => {
    expect(openBlas(library, { MLX_SERVE_THREADS: "1" })?.threads).toBe(1);
    const blas = openBlas(library, {});
    expect(blas?.name).toStartWith("OpenBLAS");
    expect(blas?.threads).toBe(availableParallelism());
  });

  test("libmlx's products are bound to the shim, not to the BLAS of its wheel", () => {
    const log = mkdtempSync(join(tmpdir(), "bindings-"));
    const program = join(import.meta.dir, "../support/matmul.ts");
    const { exitCode } = Bun.spawnSync([process.execPath, program], {
      env: { ...process.env, LD_DEBUG: "bindings", LD_DEBUG_OUTPUT: join(log, "log") },
    });
    expect(exitCode).toBe(0);
    const lines = readdirSync(log).flatMap((name) =>
      readFileSync(join(log, name), "utf8").split("\n"),
    );
    rmSync(log, { recursive: true });
    const bound = lines.filter((line) => /binding file \S*libmlx\.so.*`cblas_sgemm'/.test(line));
    expect(bound).toEqual([expect.stringMatching(/to \S*libmlxc\.so/)]);
  });
}
