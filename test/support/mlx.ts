// Opens MLX for a test file, and asserts at its end that every array was freed.
import { afterAll, beforeAll, expect } from "bun:test";
import { backend, findLibrary } from "../../ffi/native.ts";
import { liveArrays } from "../../src/mlx/array.ts";
import { openMlx, type Runtime } from "../../src/mlx/runtime.ts";
import { freeDevices } from "./devices.ts";

/** The runtime's properties are there once the file's tests run. */
export function useMlx(): Runtime {
  const runtime = {} as Runtime;
  let before = 0;
  beforeAll(() => {
    const device = backend() === "cpu" ? "cpu" : "gpu";
    Object.assign(runtime, openMlx(findLibrary(), { device }));
    before = liveArrays();
  });
  afterAll(() => {
    freeDevices();
    expect(liveArrays()).toBe(before);
  });
  return runtime;
}
