import { expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { libraryIn, nativeDirectory } from "../../../ffi/native.ts";
import { dependencies } from "../../../package.json";
import { carriedFiles } from "../../../scripts/build/libraries.ts";
import {
  bundledPackages,
  format,
  nativeNotices,
  packageNotices,
  thirdPartyLicenses,
} from "../../../scripts/build/licenses.ts";
import { temporaryFolder } from "../../support/temporary-folder.ts";

const directory = nativeDirectory();
const library = libraryIn(directory);
const files = () => carriedFiles(directory, library);

const temporary = temporaryFolder();

function npmPackage(contents: Record<string, string>): string {
  const folder = mkdtempSync(join(temporary, "package-"));
  writeFileSync(join(folder, "package.json"), '{ "name": "some", "version": "1.2.3" }');
  for (const [name, text] of Object.entries(contents)) writeFileSync(join(folder, name), text);
  return folder;
}

test("every package in the bundle has its license in the text", async () => {
  const packages = await bundledPackages();
  const names = packages.map((folder) => {
    return JSON.parse(readFileSync(join(folder, "package.json"), "utf8")).name as string;
  });
  expect(names).toEqual(expect.arrayContaining(Object.keys(dependencies)));
  expect(names).toContain("sonic-boom"); // one of pino's own
  const text = await thirdPartyLicenses(directory, []);
  for (const [i, folder] of packages.entries()) {
    const notices = packageNotices(folder);
    expect([names[i], notices.length]).not.toEqual([names[i], 0]);
    for (const notice of notices) {
      expect(notice.text.length).toBeGreaterThan(200);
      expect(text).toContain(notice.name);
      expect(text).toContain(notice.text.replaceAll("\r\n", "\n"));
    }
  }
});

test("a package without a license, or with an empty one, is refused", () => {
  expect(() => packageNotices(npmPackage({}))).toThrow("some 1.2.3 has no license in it");
  expect(() => packageNotices(npmPackage({ LICENSE: "\n" }))).toThrow("has no license in it");
  expect(packageNotices(npmPackage({ "LICENCE.md": "free\n", NOTICE: "by some\n" }))).toEqual([
    { name: "some 1.2.3", text: "free\n\nby some" },
  ]);
});

test.if(existsSync(library))("everything in set-up's libraries has its license", () => {
  const names = nativeNotices(directory, files()).map(({ name }) => name);
  const expected = ["mlx-c (mlx-sys", "MLX ", "pocketfft", "{fmt}", "JSON for", "gguflib"];
  if (process.platform === "linux") expected.push("OpenBLAS", "the reference BLAS", "libquadmath");
  for (const start of expected) {
    expect(names).toContainEqual(expect.stringMatching(new RegExp(`^${RegExp.escape(start)}`)));
  }
});

test("what is inside CUDA's and macOS's libraries is known too", () => {
  const folder = mkdtempSync(join(temporary, "native-"));
  mkdirSync(join(folder, "licenses"));
  for (const name of ["mlx", "mlx-c", "pocketfft", "metal-cpp", "cutlass"]) {
    writeFileSync(join(folder, "licenses", `${name}.txt`), `terms of ${name}`);
  }
  const notices = nativeNotices(folder, [
    "mlx/lib/libmlxc.dylib",
    "mlx/lib/mlx.metallib",
    "mlx/include/cccl/cuda/std/array",
    "mlx/include/cute/tensor.hpp",
  ]);
  expect(notices).toContainEqual({ name: "metal-cpp, in MLX", text: "terms of metal-cpp" });
  expect(notices).toContainEqual({ name: "CUTLASS", text: "terms of cutlass" });
  const libcu = notices.find(({ name }) => name === "libcu++ (CCCL)")?.text;
  expect(libcu).toContain("Apache License");
  expect(libcu).toContain("LLVM Exceptions");
});

test("a library that nothing is known of is refused, and one whose license is missing", () => {
  expect(() => nativeNotices(directory, ["mlx.libs/libnew-1.so"])).toThrow(
    "no license is known for mlx.libs/libnew-1.so",
  );
  const empty = mkdtempSync(join(temporary, "native-"));
  expect(() => nativeNotices(empty, ["mlx/lib/libmlxc.so"])).toThrow("mlx-c.txt is missing");
});

test("a text is there once, under all its names, and the order does not matter", () => {
  const notices = [
    { name: "b 1", text: "shared" },
    { name: "a 1", text: "other" },
    { name: "c 1", text: "shared" },
    { name: "d 1", text: "another" },
  ];
  const text = format(notices);
  expect(text.match(/^shared$/gm)).toHaveLength(1);
  expect(text).toMatch(/^b 1\nc 1\n=+\n\nshared$/m);
  expect(format(notices.toReversed())).toBe(text);
});
