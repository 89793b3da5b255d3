import { expect, test } from "bun:test";
import {
  closeSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { extract } from "../../ffi/extract.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();
const folder = () => mkdtempSync(join(root, "folder-"));

function embed(contents: Record<string, string | Uint8Array>) {
  const sources = folder();
  return Object.entries(contents).map(([path, content], i) => {
    const source = join(sources, String(i));
    writeFileSync(source, Bun.zstdCompressSync(Buffer.from(content)));
    const sha256 = new Bun.CryptoHasher("sha256").update(content).digest("hex");
    return { path, source, sha256 };
  });
}

const files = embed({ "mlx/lib/libmlx.so": "one", "mlx.libs/libblas.so": "two" });
const large = embed({ "mlx/lib/libmlx.so": crypto.getRandomValues(new Uint8Array(65_536)) });

const filesIn = (path: string) =>
  readdirSync(path, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());

/** The same in a process of its own, which prints the folder. `limit` is shell that goes before. */
function extractElsewhere(what: typeof files, cache: string, temporary: string, limit = "") {
  const module = JSON.stringify(join(import.meta.dir, "../../ffi/extract.ts"));
  const code = `
    const { extract } = await import(${module});
    const folder = extract(${JSON.stringify(what)}, ${JSON.stringify(cache)});
    const { readFileSync } = await import("node:fs");
    console.log(folder, readFileSync(folder + "/mlx/lib/libmlx.so").length);
  `;
  return Bun.spawn(["/bin/sh", "-c", `${limit} exec "$@"`, "sh", process.execPath, "-e", code], {
    env: { ...process.env, TMPDIR: temporary },
    stdio: ["ignore", "pipe", "pipe"],
  });
}

const text = (stream: ReadableStream) => new Response(stream).text();

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
  const others = embed({ "mlx/lib/libmlx.so": "three", "mlx.libs/libblas.so": "two" });
  expect(extract(others, cache)).not.toBe(extract(files, cache));
});

test.each(["", "on", "onE"])("a library damaged to %j is noticed and replaced", (damage) => {
  const cache = folder();
  const target = extract(files, cache);
  writeFileSync(join(target, "mlx/lib/libmlx.so"), damage);
  expect(extract(files, cache)).toBe(target);
  expect(readFileSync(join(target, "mlx/lib/libmlx.so"), "utf8")).toBe("one");
});

test("an extraction that was broken off is completed", () => {
  const cache = folder();
  const target = extract(files, cache);
  rmSync(join(target, "mlx.libs"), { recursive: true });
  expect(extract(files, cache)).toBe(target);
  expect(readFileSync(join(target, "mlx.libs/libblas.so"), "utf8")).toBe("two");
});

test("a process that has a library open keeps it when another replaces it", () => {
  const cache = folder();
  const library = join(extract(files, cache), "mlx/lib/libmlx.so");
  writeFileSync(library, "old");
  const opened = openSync(library, "r");
  extract(files, cache);
  expect(readFileSync(opened, "utf8")).toBe("old");
  closeSync(opened);
});

test("processes that start at once share one whole folder", async () => {
  const cache = folder();
  const started = Array.from({ length: 6 }, () => extractElsewhere(large, cache, folder()));
  const said = await Promise.all(started.map(({ stdout }) => text(stdout)));
  expect(new Set(said)).toEqual(new Set([`${extract(large, cache)} 65536\n`]));
  expect(filesIn(cache).map(({ name }) => name)).toEqual(["libmlx.so"]);
}, 30_000);

test("without a writable cache the libraries go to a temporary folder, for that run", async () => {
  const notAFolder = join(folder(), "file");
  writeFileSync(notAFolder, "");
  const temporary = folder();
  const said = await text(extractElsewhere(files, notAFolder, temporary).stdout);
  expect(said).toStartWith(join(temporary, "mlx-serve-"));
  expect(said).toEndWith(" 3\n");
  expect(readdirSync(temporary)).toEqual([]);
});

test("where nothing can be written there is one line, and nothing half written is left", async () => {
  const cache = folder();
  const temporary = folder();
  // Files of more than some kilobytes are refused, as on a full disk.
  const full = extractElsewhere(large, cache, temporary, "trap '' XFSZ; ulimit -f 8;");
  expect(await text(full.stderr)).toContain(
    `can be written neither to ${cache} (EFBIG) nor to ${temporary}: name a folder with room in `,
  );
  expect(filesIn(cache)).toEqual([]);
  expect(readdirSync(temporary)).toEqual([]);
});
