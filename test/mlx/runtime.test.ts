import { expect, test } from "bun:test";
import { join } from "node:path";
import { findLibrary } from "../../ffi/native.ts";
import { MLX_VERSION } from "../../ffi/pins.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Stream } from "../../src/mlx/stream.ts";
import { useMlx } from "../support/mlx.ts";

const mlx = useMlx();

test("MLX says its version and its device", () => {
  if (!process.env.MLX_SERVE_MLXC) expect(mlx.mlxVersion).toBe(MLX_VERSION);
  expect(mlx.device.device_name ?? mlx.device.architecture).toBeString();
  if (mlx.backend === "cuda") expect(mlx.device.multiprocessors).toBeGreaterThan(0);
});

test("a GPU that is not there is an error, not a silent CPU", () => {
  if (mlx.backend === "cpu") {
    expect(() => openMlx(findLibrary(), { device: "gpu" })).toThrow("MLX sees no GPU");
  } else {
    expect(openMlx(findLibrary(), { device: "gpu" }).backend).toBe(mlx.backend);
  }
});

test("a freed stream refuses to be used", () => {
  const other = new Stream("cpu");
  other.synchronize();
  other.free();
  expect(() => other.synchronize()).toThrow("freed");
  expect(() => other.use()).toThrow("freed");
  expect(() => other.free()).toThrow("freed");
});

test("calls before MLX is opened, and a library that is none, are clear errors", () => {
  const lib = join(import.meta.dir, "../../ffi/lib.ts");
  const program = `
    const { mlxc, openLibrary } = await import(${JSON.stringify(lib)});
    for (const run of [() => mlxc.mlx_clear_cache(), () => openLibrary("/nowhere.so")]) {
      try { run(); } catch (error) { console.log(error.message); }
    }`;
  const { stdout, exitCode } = Bun.spawnSync([process.execPath, "-e", program]);
  expect(exitCode).toBe(0);
  expect(stdout.toString().trim().split("\n")).toEqual([
    "mlx_clear_cache was called before MLX was opened",
    expect.stringContaining("/nowhere.so"),
  ]);
});
