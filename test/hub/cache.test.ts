import { beforeEach, describe, expect, test } from "bun:test";
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative } from "node:path";
import { listRepos, readRepo, removeFromCache } from "../../src/hub/cache.ts";
import { takeRepoLock } from "../../src/hub/repo-lock.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();
const [A, B] = ["a".repeat(40), "b".repeat(40)];

let cache: string;
beforeEach(() => {
  cache = mkdtempSync(join(root, "hub-"));
});

function write(path: string, text: string): void {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
}

function link(path: string, target: string): void {
  mkdirSync(dirname(path), { recursive: true });
  symlinkSync(relative(dirname(path), target), path);
}

type Revisions = Record<string, { files: Record<string, string>; refs?: string[] }>;

/** A repo as huggingface_hub writes it; a file's text is its blob's name too. */
function add(id: string, revisions: Revisions): string {
  const repo = join(cache, `models--${id.replace("/", "--")}`);
  for (const [commit, { files, refs = [] }] of Object.entries(revisions)) {
    for (const [path, text] of Object.entries(files)) {
      write(join(repo, "blobs", text), text);
      link(join(repo, "snapshots", commit, path), join(repo, "blobs", text));
    }
    for (const ref of refs) write(join(repo, "refs", ref), commit);
  }
  return repo;
}

const two: Revisions = {
  [A]: { files: { "config.json": "old", "sub/w.safetensors": "shared" }, refs: ["v1", "pr/1"] },
  [B]: { files: { "config.json": "newer", "sub/w.safetensors": "shared" }, refs: ["main"] },
};

/** Every path below a folder, with what it holds. */
function everything(folder: string): Record<string, string> {
  const paths = readdirSync(folder, { recursive: true, encoding: "utf8" }).sort();
  const files = paths.filter((path) => !lstatSync(join(folder, path)).isDirectory());
  return Object.fromEntries(files.map((path) => [path, readFileSync(join(folder, path), "utf8")]));
}

describe("the list of repos", () => {
  test("counts each blob once", () => {
    const path = add("org/two", two);
    utimesSync(join(path, "blobs", "shared"), 3e9, 1e9);
    for (const blob of ["old", "newer"]) utimesSync(join(path, "blobs", blob), 2e9, 2e9);
    const [repo, ...others] = listRepos(cache);
    expect(others).toEqual([]);
    expect(repo).toEqual({
      id: "org/two",
      path,
      bytes: "old".length + "newer".length + "shared".length,
      modifiedMs: 2e12,
      usedMs: 3e12,
      revisions: [
        {
          commit: A,
          refs: ["pr/1", "v1"],
          path: join(path, "snapshots", A),
          files: [
            { path: "config.json", bytes: 3 },
            { path: "sub/w.safetensors", bytes: 6 },
          ],
        },
        {
          commit: B,
          refs: ["main"],
          path: join(path, "snapshots", B),
          files: [
            { path: "config.json", bytes: 5 },
            { path: "sub/w.safetensors", bytes: 6 },
          ],
        },
      ],
    });
  });

  test("passes over what is no model, and what is broken", () => {
    expect(listRepos(join(cache, "absent"))).toEqual([]);
    add("org/good", { [A]: { files: { "config.json": "x" } } });
    mkdirSync(join(cache, "datasets--org--data"));
    mkdirSync(join(cache, "models--org--empty"));
    mkdirSync(join(cache, ".locks"));
    write(join(cache, "CACHEDIR.TAG"), "");
    write(join(cache, "models--org--file"), "");
    const broken = join(cache, "models--org--broken");
    link(join(broken, "snapshots", A, "config.json"), join(broken, "blobs", "absent"));
    write(join(broken, "refs", "main"), B);
    const repos = listRepos(cache).map(({ id, bytes }) => ({ id, bytes }));
    expect(repos).toEqual([
      { id: "org/broken", bytes: 0 },
      { id: "org/good", bytes: 1 },
    ]);
  });

  test("has the bytes of a pull that was interrupted", () => {
    write(join(cache, "models--org--part", "blobs", "x.incomplete"), "1234");
    expect(listRepos(cache)).toMatchObject([{ id: "org/part", bytes: 4, revisions: [] }]);
  });
});

describe("removing", () => {
  test("a repo leaves the others as they are", () => {
    add("org/other", two);
    const before = everything(cache);
    const path = add("org/two", two);
    write(join(path, "blobs", "part.incomplete"), "12");
    expect(removeFromCache(cache, "org/two")).toEqual({ freedBytes: 16 });
    const { [join(".locks", "models--org--two", "mlx-serve.lock")]: lock, ...after } =
      everything(cache);
    expect(lock).toBe("");
    expect(after).toEqual(before);
    expect(existsSync(path)).toBe(false);
  });

  test("a revision takes its own blobs, and leaves those of the others", () => {
    const path = add("org/two", two);
    write(join(path, "trees", `${A}.json`), "{}");
    expect(removeFromCache(cache, "org/two", A)).toEqual({ freedBytes: 3 });
    expect(everything(path)).toEqual({
      "blobs/newer": "newer",
      "blobs/shared": "shared",
      "refs/main": B,
      [`snapshots/${B}/config.json`]: "newer",
      [`snapshots/${B}/sub/w.safetensors`]: "shared",
    });
    expect(readdirSync(join(path, "refs"))).toEqual(["main"]);
  });

  test("one of two names of a commit leaves the other", () => {
    const path = add("org/two", two);
    expect(removeFromCache(cache, "org/two", "pr/1")).toEqual({ freedBytes: 0 });
    expect(readRepo(cache, "org/two")!.revisions[0]!.refs).toEqual(["v1"]);
    expect(removeFromCache(cache, "org/two", "v1")).toEqual({ freedBytes: 3 });
    expect(readdirSync(join(path, "snapshots"))).toEqual([B]);
  });

  test("the last revision takes the repo with it", () => {
    const path = add("org/one", { [A]: { files: { "config.json": "x" }, refs: ["main"] } });
    expect(removeFromCache(cache, "org/one", "main")).toEqual({ freedBytes: 1 });
    expect(existsSync(path)).toBe(false);
  });

  test("follows no link out of the repo", () => {
    const path = add("org/two", two);
    const outside = join(cache, "precious");
    write(outside, "mine");
    link(join(path, "snapshots", A, "evil"), outside);
    removeFromCache(cache, "org/two", A);
    removeFromCache(cache, "org/two");
    expect(readFileSync(outside, "utf8")).toBe("mine");
  });

  test("what is not there says so, and touches nothing", () => {
    add("org/two", two);
    const before = everything(cache);
    expect(() => removeFromCache(cache, "org/absent")).toThrow("is not in the cache");
    expect(() => removeFromCache(cache, "org/two", "v9")).toThrow("only pr/1, v1, main");
    expect(everything(cache)).toMatchObject(before);
  });

  test("waits for no pull: it is refused while one is under way", () => {
    const path = add("org/two", two);
    using _pulling = takeRepoLock(cache, "models--org--two");
    expect(() => removeFromCache(cache, "org/two")).toThrow("is being pulled");
    expect(existsSync(join(path, "snapshots", A))).toBe(true);
  });

  test("a blob that repos share takes it when its last link goes", () => {
    const hash = "c".repeat(64);
    const stored = join(cache, "blobs", "cc", hash);
    write(stored, "shared!");
    const repos = ["org/a", "org/b"].map((id) => {
      const path = add(id, { [A]: { files: { "config.json": "x" } } });
      link(join(path, "blobs", "w"), stored);
      link(join(path, "snapshots", A, "w.safetensors"), join(path, "blobs", "w"));
      return `${relative(cache, path)}/blobs/w\n`;
    });
    write(`${stored}.refs`, repos.join(""));
    expect(readRepo(cache, "org/a")!.bytes).toBe(8);
    expect(removeFromCache(cache, "org/a")).toEqual({ freedBytes: 1 });
    expect(readFileSync(stored, "utf8")).toBe("shared!");
    expect(removeFromCache(cache, "org/b")).toEqual({ freedBytes: 8 });
    expect(readdirSync(dirname(stored))).toEqual([]);
  });
});
