// Opens MLX for a test file, and asserts at its end that every array was freed.
import { afterAll, beforeAll, expect } from "bun:test";
import { openBlas } from "../../ffi/blas.ts";
import { backend, findLibrary } from "../../ffi/native.ts";
import { liveArrays } from "../../src/mlx/array.ts";
import { openMlx, type Runtime } from "../../src/mlx/runtime.ts";
import { Stream } from "../../src/mlx/stream.ts";
import { freeDevices } from "./devices.ts";

/** The runtime of the file that runs. */
let opened: Runtime | undefined;

/** The runtime's properties are there once the file's tests run. */
export function useMlx(): Runtime {
  const runtime = {} as Runtime;
  let before = 0;
  beforeAll(() => {
    const device = backend() === "cpu" ? "cpu" : "gpu";
    opened = openMlx(findLibrary(), { device });
    // OpenBLAS threads spin while they wait: more than one slows small products and busy machines.
    openBlas(findLibrary(), { MLX_SERVE_THREADS: "1" });
    Object.assign(runtime, opened);
    before = liveArrays();
  });
  afterAll(() => {
    freeDevices();
    expect(liveArrays()).toBe(before);
  });
  return runtime;
}

/** Builds on the CPU, wherever the tests run; what is built must be evaluated there too. */
export function onCpu<T>(build: () => T): T {
  if (!opened || opened.backend === "cpu") return build();
  const cpu = new Stream("cpu");
  cpu.use();
  try {
    return build();
  } finally {
    opened.stream.use();
  }
}
