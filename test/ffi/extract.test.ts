import { expect, test } from "bun:test";
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { extract } from "../../ffi/extract.ts";

const folder = () => mkdtempSync(join(tmpdir(), "extract-"));

function embed(contents: Record<string, string>) {
  const sources = folder();
  return Object.entries(contents).map(([path, content], i) => {
    const source = join(sources, String(i));
    writeFileSync(source, content);
    const sha256 = new Bun.CryptoHasher("sha256").update(content).digest("hex");
    return { path, source, sha256 };
  });
}

const files = embed({ "mlx/lib/libmlx.so": "one", "mlx.libs/libblas.so": "two" });

test("libraries are written once, in their layout, and used again", () => {
  const cache = folder();
  const first = extract(files, cache);
  expect(readFileSync(join(first, "mlx/lib/libmlx.so"), "utf8")).toBe("one");
  expect(readFileSync(join(first, "mlx.libs/libblas.so"), "utf8")).toBe("two");
  const written = statSync(join(first, "mlx/lib/libmlx.so")).ino;
  expect(extract(files, cache)).toBe(first);
  expect(statSync(join(first, "mlx/lib/libmlx.so")).ino).toBe(written);
  expect(readdirSync(join(cache, "libraries"))).toHaveLength(1);
});

test("other contents get another folder", () => {
  const cache = folder();
  const others = embed({ "mlx/lib/libmlx.so": "three" });
  expect(extract(others, cache)).not.toBe(extract(files, cache));
});

test("a damaged library is noticed and replaced", () => {
  const cache = folder();
  const target = extract(files, cache);
  writeFileSync(join(target, "mlx/lib/libmlx.so"), "on");
  expect(extract(files, cache)).toBe(target);
  expect(readFileSync(join(target, "mlx/lib/libmlx.so"), "utf8")).toBe("one");
});

test("without a writable cache the libraries go to a temporary folder", () => {
  const notAFolder = join(folder(), "file");
  writeFileSync(notAFolder, "");
  const target = extract(files, notAFolder);
  expect(target).toStartWith(tmpdir());
  expect(existsSync(join(target, "mlx/lib/libmlx.so"))).toBe(true);
});
