// The architecture as a table: which folder may import which. docs/development.md says why.
import { expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";

const root = join(import.meta.dir, "..");

/** Folder -> the folders it may import besides itself. */
const allowed: Record<string, string[]> = {
  ffi: [],
  "src/mlx": ["ffi"],
  "src/files": [],
  "src/kernels": ["src/mlx"],
  "src/device": ["src/kernels", "src/mlx", "ffi"],
  "src/model": ["src/files", "src/device", "src/kernels", "src/mlx", "src/kv"],
  "src/kv": [],
  "src/schedule": ["src/kv"],
  "src/hub": ["src", "ffi"],
  "src/grammar": ["src/text", "src"],
  "src/engine": ["src/grammar", "src/kv", "src/model", "src/schedule", "src"],
  "src/ranks": [
    "src/engine",
    "src/hub",
    "src/device",
    "src/model",
    "src/kv",
    "src/mlx",
    "src",
    "ffi",
  ],
  "src/worker": [
    "src/engine",
    "src/ranks",
    "src/grammar",
    "src/schedule",
    "src/kv",
    "src/device",
    "src/model",
    "src/mlx",
    "ffi",
  ],
  "src/self-test": [
    "src/worker",
    "src/engine",
    "src/grammar",
    "src/device",
    "src/kernels",
    "src/kv",
    "src/mlx",
    "src/model",
    "src/text",
    "src",
    "ffi",
  ],
  "src/text": ["src/files", "src"],
  "src/config": ["src/hub", "src"],
  "src/keys": ["src/engine", "src/hub"],
  "src/serve": ["src/engine", "src/text", "src/hub", "src/kv", "src/files", "ffi"],
  "src/service": ["src/hub"],
  "src/api": [],
  "src/console": ["src/api"],
  "src/batch": ["ffi"],
  "src/tools": ["src/text"],
  "src/conversation": [
    "src/grammar",
    "src/tools",
    "src/serve",
    "src/config",
    "src/engine",
    "src/text",
  ],
  "src/http": [
    "src/api",
    "src/ranks",
    "src/batch",
    "src/bench",
    "src/conversation",
    "src/grammar",
    "src/serve",
    "src/keys",
    "src/config",
    "src/engine",
    "src/text",
    "src/hub",
    "src",
    "ffi",
  ],
  "src/bench": ["src/serve", "src/engine", "src", "src/text", "src/hub", "src/config", "ffi"],
  "src/cli": [
    "src/api",
    "src/ranks",
    "src/batch",
    "src/bench",
    "src/self-test",
    "src/http",
    "src/serve",
    "src/service",
    "src/keys",
    "src/config",
    "src/engine",
    "src/hub",
    "src/text",
    "src/files",
    "src",
    "ffi",
  ],
  src: ["src/cli", "src/config", "src/hub"],
};

type Import = { file: string; from: string; to: string };

function imports(): Import[] {
  const files = ["ffi", "src"].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
      .filter((path) => /\.tsx?$/.test(path))
      .map((path) => join(folder, path)),
  );
  return files.flatMap((file) => {
    const source = readFileSync(join(root, file), "utf8");
    const statements = source.matchAll(/^(?:import|export)\b[^;]*? from "(\.[^"]+)"/gm);
    return Array.from(statements, ([, path]) => ({
      file,
      from: dirname(file),
      to: dirname(normalize(join(dirname(file), path!))),
    }));
  });
}

/** Architectures and the like stand in folders of their own below a layer. */
const layerOf = (folder: string) =>
  Object.keys(allowed)
    .filter((layer) => layer !== "src" || folder === "src")
    .find((layer) => folder === layer || folder.startsWith(`${layer}/`));

test("every import goes in an allowed direction", () => {
  const found = imports();
  expect(found.length).toBeGreaterThan(50);
  const wrong = found.filter(({ from, to, file }) => {
    if (to === ".") return false; // package.json
    const [source, target] = [layerOf(from), layerOf(to)];
    if (!source || !target) throw new Error(`${file}: no layer for ${source ? to : from}`);
    return target !== source && !allowed[source]!.includes(target);
  });
  expect(wrong).toEqual([]);
});

test("bun:ffi is imported in ffi/ alone", () => {
  const users = readdirSync(join(root, "src"), { recursive: true, encoding: "utf8" })
    .filter((path) => path.endsWith(".ts"))
    .filter((path) => readFileSync(join(root, "src", path), "utf8").includes('"bun:ffi"'));
  expect(users).toEqual([]);
});
