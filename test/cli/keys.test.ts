import { afterAll, beforeEach, expect, spyOn, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { keys } from "../../src/cli/keys.ts";
import { UsageError } from "../../src/config/usage-error.ts";
import { defaultKeyFile, hashOf, readKeyFile } from "../../src/keys/key-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const log = spyOn(console, "log").mockImplementation(() => {});
const say = spyOn(console, "error").mockImplementation(() => {});
const root = temporaryFolder();
afterAll(() => {
  log.mockRestore();
  say.mockRestore();
});

let env: Record<string, string>;
beforeEach(() => {
  env = { HOME: mkdtempSync(join(root, "home-")) };
  log.mockClear();
  say.mockClear();
});

const add = async (...args: string[]) => {
  await keys(["add", ...args], env);
  return String(log.mock.calls.at(-1)![0]);
};

test("keys add shows a key once, and keeps its hash", async () => {
  const key = await add("alice");
  expect(key).toStartWith("sk-mlx-");
  expect(log).toHaveBeenCalledTimes(1);
  expect(say.mock.calls.join()).toContain("shown only once");
  expect(say.mock.calls.join()).toContain("SIGHUP");
  expect(say.mock.calls.join()).not.toContain(key);
  const path = defaultKeyFile(env);
  expect(readFileSync(path, "utf8")).not.toContain(key);
  expect(readKeyFile(path)?.keys).toEqual([
    {
      name: "alice",
      sha256: hashOf(key).toString("hex"),
      tier: "NORMAL",
      limits: {},
      created: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
    },
  ]);
});

test("keys add takes a tier, limits and a file", async () => {
  const path = join(env.HOME!, "other.json");
  const limits = ["--requests-per-minute", "60", "--tokens-per-minute=100000", "--concurrent", "4"];
  await add("bob", "--tier", "low", ...limits, "--keys-file", path);
  expect(readKeyFile(path)?.keys).toMatchObject([
    {
      name: "bob",
      tier: "LOW",
      limits: { requests_per_minute: 60, tokens_per_minute: 100_000, concurrent: 4 },
    },
  ]);
  expect(existsSync(defaultKeyFile(env))).toBe(false);
});

test("keys uses the file that the server would", async () => {
  const folder = join(env.HOME!, ".config", "mlx-serve");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "config.toml"), 'keys_file = "named.json"');
  await add("alice");
  env.MLX_SERVE_KEYS_FILE = "~/other.json";
  await add("bob");
  expect(readKeyFile(join(folder, "named.json"))?.keys).toMatchObject([{ name: "alice" }]);
  expect(readKeyFile(join(env.HOME!, "other.json"))?.keys).toMatchObject([{ name: "bob" }]);
  expect(existsSync(defaultKeyFile(env))).toBe(false);
});

test("keys ls lists everything but the hashes", async () => {
  await add("alice", "--tier", "HIGH", "--requests-per-minute", "60");
  await add("bob");
  const today = new Date().toISOString().slice(0, 10);
  await keys(["ls"], env);
  expect(log.mock.calls.at(-1)).toEqual([
    [
      "NAME   TIER    REQUESTS/MIN  TOKENS/MIN  CONCURRENT  CREATED",
      `alice  HIGH    60            -           -           ${today}`,
      `bob    NORMAL  -             -           -           ${today}`,
    ].join("\n"),
  ]);
  await keys(["ls", "--json"], env);
  const rows = JSON.parse(log.mock.calls.at(-1)![0]);
  const limits = { requests_per_minute: 60 };
  expect(rows[0]).toEqual({ name: "alice", tier: "HIGH", limits, created: expect.any(String) });
});

test("keys ls warns of a file that others can read", async () => {
  await add("alice");
  say.mockClear();
  await keys(["ls"], env);
  expect(say).not.toHaveBeenCalled();
  chmodSync(defaultKeyFile(env), 0o644);
  await keys(["ls"], env);
  expect(say.mock.calls.join()).toContain("chmod 600");
});

test("keys ls of nothing is a table of nothing", async () => {
  await keys(["ls"], env);
  expect(log.mock.calls).toEqual([["NAME  TIER  REQUESTS/MIN  TOKENS/MIN  CONCURRENT  CREATED"]]);
});

test("keys revoke takes one key out", async () => {
  await add("alice");
  await add("bob");
  await keys(["revoke", "alice"], env);
  expect(log.mock.calls.at(-1)![0]).toContain("alice is revoked");
  expect(readKeyFile(defaultKeyFile(env))?.keys.map(({ name }) => name)).toEqual(["bob"]);
  await expect(keys(["revoke", "alice"], env)).rejects.toThrow("no key is named alice");
});

test("keys add refuses a name that is taken, and leaves its key", async () => {
  await add("alice");
  const before = readKeyFile(defaultKeyFile(env));
  await expect(add("alice")).rejects.toThrow("a key named alice exists");
  expect(log).toHaveBeenCalledTimes(1);
  expect(readKeyFile(defaultKeyFile(env))).toEqual(before!);
});

test("keys refuses wrong usage in one line, by name", async () => {
  for (const [args, message] of [
    [[], "usage: mlx-serve keys add"],
    [["frobnicate"], "usage: mlx-serve keys add"],
    [["constructor"], "usage: mlx-serve keys add"],
    [["add"], "usage: mlx-serve keys add"],
    [["add", "a", "b"], "usage: mlx-serve keys add"],
    [["add", "a b"], "the name of a key"],
    [["add", "local"], "this name is reserved"],
    [["add", "a", "--tier", "TOP"], "--tier"],
    [["add", "a", "--requests-per-minute", "0"], "--requests-per-minute"],
    [["add", "a", "--tokens-per-minute", "1.5"], "--tokens-per-minute"],
    [["add", "a", "--concurrent", "many"], "--concurrent"],
    [["add", "a", "--concurrent", "-1"], "--concurrent"],
    [["add", "a", "--frobnicate"], "--frobnicate"],
    [["ls", "a"], "usage: mlx-serve keys add"],
    [["revoke"], "usage: mlx-serve keys add"],
    [["revoke", "a", "--json"], "--json"],
  ] as const) {
    const error = await keys([...args], env).catch((error: unknown) => error);
    expect(error).toBeInstanceOf(UsageError);
    expect((error as Error).message).toContain(message);
    expect((error as Error).message).not.toContain("\n");
  }
  expect(existsSync(defaultKeyFile(env))).toBe(false);
});
