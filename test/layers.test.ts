// The architecture as tables: which folder may import which, and which of its sub-folders. No arrow goes both ways, and
// files form no cycles. docs/development.md says why.
import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize, relative } from "node:path";

const root = join(import.meta.dir, "..");

/** Rows with their words as lists. */
function table(rows: Record<string, string>, pathOf = (name: string) => name) {
  const entries = Object.entries(rows).map(([name, others]): [string, string[]] => {
    return [pathOf(name), (others.match(/\S+/g) ?? []).map(pathOf)];
  });
  return Object.fromEntries(entries);
}

const inSrc = (name: string) => (["src", "ffi"].includes(name) ? name : `src/${name}`);

/** Folder of src, or ffi -> those it may import besides itself; "src" are the files directly in it. */
const allowed = table(
  {
    ffi: "",
    mlx: "ffi",
    files: "",
    kernels: "mlx",
    device: "kernels mlx ffi",
    model: "files device kernels mlx kv",
    kv: "",
    schedule: "kv",
    hub: "files src ffi",
    grammar: "text src",
    engine: "grammar kv model schedule src",
    ranks: "engine hub device model kv mlx src ffi",
    worker: "engine ranks grammar schedule kv device model mlx ffi",
    "self-test": "worker engine grammar device kernels kv mlx model text src ffi",
    text: "files src",
    config: "hub src",
    keys: "engine hub src",
    serve: "engine text hub kv files src ffi",
    service: "hub",
    api: "",
    console: "api",
    batch: "ffi",
    tools: "text",
    conversation: "grammar tools serve config engine text src",
    http: "api ranks batch bench conversation grammar serve keys config engine text hub src ffi",
    bench: "serve engine src text hub config ffi",
    cli: "api ranks batch bench self-test http serve service keys config engine hub text files src ffi",
    src: "cli config hub",
  },
  inSrc,
);

/**
 * Folder -> its sub-folders, lowest first, and the siblings that each may import. "." are the files directly in it. A
 * folder that is not listed has no sub-folders of its own.
 */
const inside: Record<string, Record<string, string[]>> = {
  "src/model": table({
    "checkpoint/stored": "",
    "checkpoint/formats": "checkpoint/stored",
    "checkpoint/gguf": "checkpoint/stored checkpoint/formats",
    checkpoint: "checkpoint/stored checkpoint/formats checkpoint/gguf",
    weights: "checkpoint checkpoint/stored checkpoint/formats",
    contract: "checkpoint weights",
    layers: "checkpoint checkpoint/stored weights contract",
    state: "contract",
    run: "contract state",
    design: "checkpoint weights contract layers",
    archs: "checkpoint checkpoint/stored weights contract layers design",
    ".": "checkpoint weights contract design archs",
  }),
  "src/kernels": table({
    host: "",
    product: "host",
    attention: "host product",
    recurrence: "host",
    token: "host",
  }),
  "src/text": table({
    tokenizer: "",
    "tokenizer-files": "tokenizer",
    template: "tokenizer",
    ".": "tokenizer tokenizer-files template",
    encoder: "tokenizer template .",
  }),
  "src/grammar": table({ pattern: "", schema: "pattern", ".": "pattern schema" }),
  "src/tools": table({ syntax: "", formats: "syntax", ".": "syntax formats" }),
  "src/api": table({ ".": "", openai: ".", anthropic: ".", ollama: ".", owner: "." }),
  "src/http": table({
    wire: "",
    frame: "",
    generate: "frame",
    openai: "frame generate",
    owner: "frame openai",
    anthropic: "frame generate openai",
    ollama: "frame generate openai owner",
    ".": "wire frame generate openai owner anthropic ollama",
  }),
  "src/cli": table({
    terminal: "",
    server: "",
    models: "terminal",
    chat: "terminal server models",
    ".": "terminal server models chat",
  }),
  "src/console": table({
    parts: "",
    chat: "parts",
    engine: "parts",
    keys: "parts",
    models: "parts",
    ".": "parts chat engine keys models",
  }),
};

/** Files of one folder, sub-folders apart. */
const MOST_FILES = 30;

type Import = { file: string; from: string; to: string; target: string };

function imports(): Import[] {
  const files = ["ffi", "src"].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
      .filter((path) => /\.tsx?$/.test(path))
      .map((path) => join(folder, path)),
  );
  return files.flatMap((file) => {
    const source = readFileSync(join(root, file), "utf8");
    const statements = source.matchAll(/^(?:import|export)\b[^;]*? from "(\.[^"]+)"/gm);
    return Array.from(statements, ([, path]) => {
      const target = normalize(join(dirname(file), path!));
      return { file, from: dirname(file), to: dirname(target), target };
    });
  });
}

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

describe.each(Object.entries(inside))("within %s", (layer, rows) => {
  const within = imports().filter(
    ({ from, to }) => layerOf(from) === layer && layerOf(to) === layer,
  );
  const subfolder = (folder: string) => relative(layer, folder) || ".";

  test("every import goes in an allowed direction", () => {
    const wrong = within.filter(({ from, to }) => {
      const [source, target] = [subfolder(from), subfolder(to)];
      return target !== source && !rows[source]?.includes(target);
    });
    expect(wrong).toEqual([]);
  });

  test("sub-folders stand in the order in which they are built on each other", () => {
    const names = Object.keys(rows);
    for (const [i, name] of names.entries()) {
      expect([name, rows[name]!.filter((other) => !names.slice(0, i).includes(other))]).toEqual([
        name,
        [],
      ]);
    }
  });

  test("every row is needed", () => {
    const used = new Set(within.map(({ from, to }) => `${subfolder(from)} ${subfolder(to)}`));
    const unused = Object.entries(rows).flatMap(([name, others]) =>
      others.filter((other) => !used.has(`${name} ${other}`)).map((other) => `${name} ${other}`),
    );
    expect(unused).toEqual([]);
  });
});

test("a folder with sub-folders has rows for them", () => {
  const unlisted = new Set(
    imports().flatMap(({ from }) => {
      const layer = layerOf(from)!;
      return from === layer || inside[layer]?.[relative(layer, from)] ? [] : [from];
    }),
  );
  expect([...unlisted]).toEqual([]);
});

test("files form no cycles", () => {
  const targets = Map.groupBy(imports(), ({ file }) => file);
  const done = new Set<string>();
  const path: string[] = [];
  const cycles: string[][] = [];
  const visit = (file: string): void => {
    if (path.includes(file)) cycles.push([...path.slice(path.indexOf(file)), file]);
    if (done.has(file)) return;
    done.add(file);
    path.push(file);
    for (const { target } of targets.get(file) ?? []) visit(target);
    path.pop();
  };
  for (const file of targets.keys()) visit(file);
  expect(cycles).toEqual([]);
});

test("no folder of src has too many files, but the architectures", () => {
  const files = readdirSync(join(root, "src"), { recursive: true, withFileTypes: true });
  const byFolder = Map.groupBy(
    files.filter((file) => file.isFile()),
    ({ parentPath }) => relative(root, parentPath),
  );
  byFolder.delete("src/model/archs");
  const large = [...byFolder].filter(([, { length }]) => length > MOST_FILES);
  expect(large.map(([folder]) => folder)).toEqual([]);
});

test("bun:ffi is imported in ffi/ alone", () => {
  const users = readdirSync(join(root, "src"), { recursive: true, encoding: "utf8" })
    .filter((path) => path.endsWith(".ts"))
    .filter((path) => readFileSync(join(root, "src", path), "utf8").includes('"bun:ffi"'));
  expect(users).toEqual([]);
});
