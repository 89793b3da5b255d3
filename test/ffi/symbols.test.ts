import { describe, expect, test } from "bun:test";
import { cpSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { findLibrary, headersOf } from "../../ffi/native.ts";
import { cudaSymbols, operations, ownSymbols, symbols } from "../../ffi/symbols.ts";
import { headerDifferences, readHeaders } from "../../scripts/headers.ts";
import { dtypes } from "../../src/mlx/dtype.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const all = { ...symbols, ...ownSymbols, ...cudaSymbols };
const folder = headersOf(findLibrary())!;
const headers = readHeaders(folder);

const temporary = temporaryFolder();

/** The pinned headers with one text replaced by another. */
function changedHeaders(file: string, from: string, to: string): string {
  const copy = mkdtempSync(join(temporary, "headers-"));
  cpSync(folder, copy, { recursive: true });
  const text = readFileSync(join(copy, file), "utf8");
  expect(text).toContain(from);
  writeFileSync(join(copy, file), text.replace(from, to));
  return copy;
}

describe("the symbol table and mlx-c's headers", () => {
  test("agree on every argument and every result", () => {
    expect(headers.functions.size).toBeGreaterThan(600);
    expect(headerDifferences(folder)).toEqual([]);
  });

  test("differ when an argument changes its type", () => {
    const changed = changedHeaders(
      "ops.h",
      "int mlx_reshape(\n    mlx_array* res",
      "int mlx_reshape(\n    int res",
    );
    expect(headerDifferences(changed)).toEqual([expect.stringContaining("mlx_reshape")]);
  });

  test("differ when an argument is added", () => {
    const changed = changedHeaders("transforms.h", "int mlx_eval(", "int mlx_eval(bool retain, ");
    expect(headerDifferences(changed)).toEqual([expect.stringContaining("mlx_eval(bool, ")]);
  });

  test("differ when a function goes away", () => {
    const changed = changedHeaders("memory.h", "mlx_clear_cache", "mlx_empty_cache");
    expect(headerDifferences(changed)).toEqual(["mlx_clear_cache is not in the headers"]);
  });

  test("differ when a handle is no longer one pointer", () => {
    const changed = changedHeaders(
      "array.h",
      "typedef struct mlx_array_ {\n  void* ctx;",
      "typedef struct mlx_array_ {\n  void* ctx;\n  int device;",
    );
    const takers = Object.keys(all).filter((name) => {
      const { params, returns } = headers.functions.get(name)!;
      return [...params, returns].includes("mlx_array");
    });
    expect(headerDifferences(changed)).toHaveLength(takers.length);
  });

  test("differ when an optional value is no longer one word", () => {
    const changed = changedHeaders("optional.h", "mlx_dtype value;", "double value;");
    const named = ["mlx_cumsum_axis", "mlx_dequantize"];
    expect(headerDifferences(changed)).toEqual(named.map((name) => expect.stringContaining(name)));
  });
});

test("the operations that return lists are those with a vector as their first argument", () => {
  const lists = Object.keys(all).filter((name) => {
    const { params } = headers.functions.get(name)!;
    return params[0] === "mlx_vector_array*" && params.at(-1) === "mlx_stream";
  });
  expect(lists).toContain("mlx_split");
  expect([...operations.lists].toSorted()).toEqual(lists.toSorted());
});

test("the element types stand in the order of mlx_dtype", () => {
  const constants = headers.enums.get("mlx_dtype")!;
  expect(constants.map((name) => name.replace("MLX_", "").toLowerCase())).toEqual([...dtypes]);
});

test("the device types are 0 for the CPU and 1 for the GPU", () => {
  expect(headers.enums.get("mlx_device_type")).toEqual(["MLX_CPU", "MLX_GPU"]);
});

test("every symbol in the table is called somewhere", () => {
  const root = join(import.meta.dir, "../..");
  const sources = ["ffi", "src", "test/support"].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
      .filter((path) => path.endsWith(".ts") && path !== "symbols.ts")
      .map((path) => readFileSync(join(root, folder, path), "utf8")),
  );
  const text = sources.join("\n");
  const words = new Set(text.match(/\w+/g));
  // The kernels' own names are built from their language.
  const built = /^mlx_fast_(cuda|metal)_kernel_apply$/;
  const unused = Object.keys(all).filter((name) => !words.has(name) && !built.test(name));
  expect(unused).toEqual([]);
});
