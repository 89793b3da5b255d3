import { beforeEach, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { ModelNotFoundError } from "../../src/hub/hub-error.ts";
import { type ResolveOptions, resolveModel } from "../../src/hub/source.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();
const [A, B] = ["a".repeat(40), "b".repeat(40)];

let home: string;
let env: Record<string, string>;
beforeEach(() => {
  home = mkdtempSync(join(root, "home-"));
  env = { HOME: home, MLX_SERVE_CACHE: join(home, "own") };
});

/** A file below the user's folder. */
function file(...path: string[]): string {
  const whole = join(home, ...path);
  mkdirSync(dirname(whole), { recursive: true });
  writeFileSync(whole, "{}");
  return whole;
}

const hub = [".cache", "huggingface", "hub"];
const snapshot = (commit: string, id = "org--tiny") => [
  ...hub,
  `models--${id}`,
  "snapshots",
  commit,
];

function ref(name: string, commit: string, id = "org--tiny"): void {
  writeFileSync(file(...hub, `models--${id}`, "refs", name), commit);
}

const resolve = (name: string, options: ResolveOptions = {}) =>
  resolveModel(name, { env, ...options });

function refusal(name: string, options: ResolveOptions = {}): string {
  try {
    resolve(name, options);
  } catch (error) {
    expect(error).toBeInstanceOf(ModelNotFoundError);
    const { message } = error as Error;
    expect(message).not.toContain("\n");
    return message;
  }
  throw new Error(`${name} was found`);
}

describe("a repo of the cache", () => {
  test("is found by its name, at main", () => {
    file(...snapshot(A), "config.json");
    file(...snapshot(B), "config.json");
    ref("main", B);
    const path = join(home, ...snapshot(B));
    expect(resolve("org/tiny")).toEqual({ kind: "folder", path, name: "org/tiny" });
    expect(resolve("org/tiny", { allowPaths: false }).path).toBe(path);
  });

  test("is found by a branch, a tag or a commit", () => {
    file(...snapshot(A), "config.json");
    file(...snapshot(B), "config.json");
    ref("main", B);
    ref("refs/pr/1", A);
    expect(resolve("org/tiny@refs/pr/1").path).toBe(join(home, ...snapshot(A)));
    expect(resolve(`org/tiny@${A}`).path).toBe(join(home, ...snapshot(A)));
    expect(refusal("org/tiny@v2")).toContain("`mlx-serve pull org/tiny@v2` downloads it");
  });

  test("without main is its only snapshot, and none of several", () => {
    file(...snapshot(A), "config.json");
    expect(resolve("org/tiny").path).toBe(join(home, ...snapshot(A)));
    file(...snapshot(B), "config.json");
    expect(refusal("org/tiny")).toContain(`${A}, ${B}`);
  });

  test("may have no organisation, and a ref that ends in a newline", () => {
    file(...snapshot(A, "gpt2"), "config.json");
    ref("main", `${A}\n`, "gpt2");
    expect(resolve("gpt2").path).toBe(join(home, ...snapshot(A, "gpt2")));
  });

  test("of GGUF files is the only one, or the one that is named", () => {
    const [q4, q8] = ["tiny-Q4_K_M.gguf", "sub/tiny.Q8_0.gguf"];
    const path = file(...snapshot(A), q4);
    expect(resolve("org/tiny")).toEqual({ kind: "gguf", path, name: "org/tiny" });
    file(...snapshot(A), q8);
    expect(refusal("org/tiny")).toContain(`${q8}, ${q4}`);
    for (const name of ["Q4_K_M", "q4_k_m", q4, "tiny-Q4_K_M"]) {
      expect(resolve(`org/tiny:${name}`).path).toBe(path);
    }
    expect(resolve("org/tiny:Q8_0").path).toBe(join(home, ...snapshot(A), q8));
    for (const name of ["K_M", "Q5_0", "_K_M"]) refusal(`org/tiny:${name}`);
  });

  test("of GGUF files in parts goes by the first", () => {
    const part = (number: number) => `UD/tiny-Q4_K_M-0000${number}-of-00003.gguf`;
    const [path] = [1, 2, 3].map((number) => file(...snapshot(A), part(number)));
    for (const name of ["", ":Q4_K_M", ":tiny-Q4_K_M", `:${part(1)}`]) {
      expect(resolve(`org/tiny${name}`)).toMatchObject({ kind: "gguf", path: path! });
    }
    refusal(`org/tiny:${part(2)}`);
    expect(resolve(path!).name).toBe("tiny-Q4_K_M");
  });

  test("stands where the environment says", () => {
    const caches = { HF_HUB_CACHE: "", HUGGINGFACE_HUB_CACHE: "" };
    const folders = { ...caches, HF_HOME: "hub", XDG_CACHE_HOME: "huggingface/hub" };
    for (const [name, below] of Object.entries(folders)) {
      const path = dirname(file(name, below, "models--o--n", "snapshots", A, "config.json"));
      expect(resolve("o/n", { env: { ...env, [name]: join(home, name) } }).path).toBe(path);
      expect(resolve("o/n", { env: { ...env, [name]: `~/${name}` } }).path).toBe(path);
    }
  });
});

describe("a path", () => {
  test("may name a folder, a GGUF file, or a folder of one", () => {
    const folder = dirname(file("model", "config.json"));
    const gguf = file("one", "tiny.gguf");
    expect(resolve(folder)).toEqual({ kind: "folder", path: folder, name: "model" });
    expect(resolve("~/model").path).toBe(folder);
    expect(resolve(gguf)).toEqual({ kind: "gguf", path: gguf, name: "tiny" });
    expect(resolve("~/one")).toEqual({ kind: "gguf", path: gguf, name: "tiny" });
  });

  test("says what is missing", () => {
    mkdirSync(join(home, "empty"));
    file("notes.txt");
    file("two", "a.gguf");
    file("two", "b.gguf");
    expect(refusal("~/empty")).toContain("contains neither config.json nor a GGUF file");
    expect(refusal("~/notes.txt")).toContain("not a GGUF file");
    expect(refusal("~/two")).toContain("choose one of a.gguf, b.gguf");
    expect(refusal("~/absent")).toContain("no such file or folder");
  });

  test("without a dot in front is one where a model is there", () => {
    const folder = dirname(file("org", "tiny", "config.json"));
    const before = process.cwd();
    process.chdir(home);
    try {
      expect(resolve("org/tiny").path).toBe(folder);
      expect(resolve("./org/tiny").path).toBe(folder);
      expect(refusal("org/other")).toContain("is not in the cache");
    } finally {
      process.chdir(before);
    }
  });

  test("is no name where paths are not allowed", () => {
    const folder = dirname(file("model", "config.json"));
    const before = process.cwd();
    process.chdir(home);
    try {
      for (const name of [folder, "~/model", "./model", "model"]) {
        expect(refusal(name, { allowPaths: false })).toStartWith("no model is named");
      }
    } finally {
      process.chdir(before);
    }
  });
});

test("no name leads out of the cache", () => {
  // All of these would be models, were the names joined to the cache's folder.
  file("config.json");
  file("x", "config.json");
  file(...hub, "config.json");
  file(...hub, "x", "config.json");
  file(...hub, "models--org--tiny", "config.json");
  file(...snapshot(A), "config.json");
  file(...snapshot(A), "x.gguf");
  ref("evil", "../../../../../x");
  const names = [
    "../../x",
    "../../../../x",
    "..",
    "org/..",
    "org/../x",
    "/x",
    `${home}/x`,
    "org//tiny",
    "org/tiny/",
    "org\\tiny",
    "..\\..\\x",
    "org/tiny\0",
    "\0",
    "org/tiny@..",
    "org/tiny@../../x",
    "org/tiny@/x",
    "org/tiny@../snapshots",
    "org/tiny@evil",
    "org/tiny@",
    "org/tiny:../x.gguf",
    `org/tiny:${home}/x.gguf`,
    "org/tiny@main@main",
    "models--org--tiny",
    "a/b/c",
    "%2e%2e/x",
    ".",
    "-",
    "x".repeat(100_000),
  ];
  for (const name of names) refusal(name, { allowPaths: false });
  for (const name of names.filter((name) => !/^(\.{1,2}|)\//.test(name) && name !== "."))
    refusal(name);
});

test("what a client is told names no folder of this machine", () => {
  expect(refusal("org/absent", { allowPaths: false })).not.toContain(home);
});

test("the default model is the one that set-up has made", () => {
  expect(refusal("default")).toContain("`npm start` creates it");
  const path = defaultModelPath(env);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, "");
  for (const name of ["", "default"]) {
    expect(resolve(name, { allowPaths: false })).toMatchObject({ kind: "gguf", path });
  }
});

test("a link that leads nowhere is no model", () => {
  mkdirSync(join(home, ...snapshot(A)), { recursive: true });
  symlinkSync("../../blobs/absent", join(home, ...snapshot(A), "config.json"));
  expect(refusal("org/tiny")).toContain("has no config.json or GGUF file in the cache");
});
