import { afterAll, beforeEach, expect, spyOn, test } from "bun:test";
import { mkdirSync, mkdtempSync, utimesSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { ls } from "../../src/cli/ls.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const log = spyOn(console, "log").mockImplementation(() => {});
const root = temporaryFolder();
afterAll(() => log.mockRestore());
const A = "a".repeat(40);

let env: Record<string, string>;
beforeEach(() => {
  const home = mkdtempSync(join(root, "home-"));
  env = { HF_HUB_CACHE: join(home, "hub"), MLX_SERVE_CACHE: join(home, "own") };
  log.mockClear();
});

function write(path: string, bytes: number, ageMs: number): void {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, Buffer.alloc(bytes));
  const time = new Date(Date.now() - ageMs);
  utimesSync(path, time, time);
}

const repo = (name: string, ...path: string[]) =>
  join(env.HF_HUB_CACHE!, `models--org--${name}`, ...path);

function addAll(): void {
  write(defaultModelPath(env), 1_500_000, 90_000);
  write(repo("a", "snapshots", A, "model.safetensors"), 3000, 3 * 3_600_000);
  write(repo("a", "refs", "main"), 0, 0);
  writeFileSync(repo("a", "refs", "main"), A);
  write(repo("bb", "snapshots", A, "x-Q4_0.gguf"), 20, 49 * 3_600_000);
  write(repo("c", "blobs", "1.incomplete"), 5, 0);
}

test("ls lists the default model and the repos of the cache", async () => {
  addAll();
  await ls([], env);
  expect(log.mock.calls[0]![0]).toBe(
    [
      "NAME     SIZE    FORMAT       MODIFIED",
      "default  1.5 MB  gguf         1 minute ago",
      "org/a    3.0 kB  safetensors  3 hours ago",
      "org/bb   20 B    gguf         2 days ago",
      "org/c    5 B     incomplete   just now",
    ].join("\n"),
  );
});

test("ls --json says the same to a program", async () => {
  addAll();
  await ls(["--json"], env);
  const rows = JSON.parse(log.mock.calls[0]![0]);
  expect(rows).toHaveLength(4);
  expect(rows[1]).toEqual({
    name: "org/a",
    bytes: 3000,
    format: "safetensors",
    modified: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
    revisions: [{ commit: A, refs: ["main"] }],
  });
});

test("ls of nothing is a table of nothing", async () => {
  await ls([], env);
  expect(log.mock.calls).toEqual([["NAME  SIZE  FORMAT  MODIFIED"]]);
});

test("ls refuses what it does not know, by name", async () => {
  await expect(ls(["--frobnicate"], env)).rejects.toThrow("--frobnicate");
  await expect(ls(["what"], env)).rejects.toThrow("what");
});
