import { expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { carriedFiles } from "../../../scripts/build/libraries.ts";
import { temporaryFolder } from "../../support/temporary-folder.ts";

const folder = temporaryFolder();

test("what the library leads to is carried, and nothing else", () => {
  const contents = {
    "mlx/lib/libmlxc.dylib": "\0@rpath/libmlx.dylib\0",
    "mlx/lib/libmlx.dylib": "\0libblas-1.so.3\0",
    "mlx/lib/libunused.dylib": "\0libmlx.dylib\0",
    "mlx/lib/mlx.metallib": "",
    "mlx/lib/cmake/libmlx.cmake": "",
    "mlx.libs/libblas-1.so.3": "\0libquadmath.so\0",
    "mlx.libs/libquadmath.so": "",
    "mlx/include/cccl/cuda/std/array": "",
    "mlx/include/mlx/c/array.h": "",
  };
  for (const [path, content] of Object.entries(contents)) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), content);
  }
  expect(carriedFiles(folder, join(folder, "mlx/lib/libmlxc.dylib"))).toEqual([
    "mlx.libs/libblas-1.so.3",
    "mlx.libs/libquadmath.so",
    "mlx/include/cccl/cuda/std/array",
    "mlx/lib/libmlx.dylib",
    "mlx/lib/libmlxc.dylib",
    "mlx/lib/mlx.metallib",
  ]);
});
