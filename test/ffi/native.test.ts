import { expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import {
  backend,
  cacheDirectory,
  findLibrary,
  nativeDirectory,
  ownSources,
  target,
} from "../../ffi/native.ts";

test("the cache is where the user wants it", () => {
  expect(cacheDirectory({ MLX_SERVE_CACHE: "/a" })).toBe("/a");
  expect(cacheDirectory({ XDG_CACHE_HOME: "/b" })).toBe("/b/mlx-serve");
  expect(cacheDirectory({})).toEndWith("/.cache/mlx-serve");
});

test("a backend that does not exist is refused by name", () => {
  expect(() => backend({ MLX_SERVE_BACKEND: "vulkan" })).toThrow(
    "MLX_SERVE_BACKEND must be cpu, metal or cuda, not vulkan",
  );
});

test.if(process.platform === "linux")("Metal on Linux is refused with what there is", () => {
  expect(() => target({ MLX_SERVE_BACKEND: "metal" })).toThrow(
    /no library for linux-\w+-metal; there are/,
  );
});

test("each backend has a folder of its own", () => {
  expect(nativeDirectory({ MLX_SERVE_CACHE: "/a" })).toMatch(/^\/a\/native\/[\w-]+-[0-9a-f]{12}$/);
  if (process.platform === "linux" && process.arch === "x64") {
    expect(nativeDirectory({ MLX_SERVE_BACKEND: "cuda" })).toContain("linux-x64-cuda-");
  }
});

test("the folder of libraries is named after every native source", () => {
  const folder = join(import.meta.dir, "..", "..", "ffi");
  const files = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !entry.name.endsWith(".ts"))
    .map((entry) => join(entry.parentPath, entry.name));
  expect(ownSources().map((path) => join(folder, path))).toEqual(files.sort());
});

test("a libmlxc of the user's own comes first", () => {
  expect(findLibrary({ MLX_SERVE_MLXC: import.meta.path })).toBe(import.meta.path);
  expect(() => findLibrary({ MLX_SERVE_MLXC: "/nowhere/libmlxc.so" })).toThrow(
    "MLX_SERVE_MLXC names /nowhere/libmlxc.so, and there is no such file",
  );
});

test.if(process.platform === "linux")("without any libmlxc the user is told what to do", () => {
  expect(() => findLibrary({ MLX_SERVE_CACHE: "/nowhere" })).toThrow("run `npm start` once");
});
