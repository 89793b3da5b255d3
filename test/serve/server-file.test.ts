import { beforeEach, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  forgetServer,
  knownServers,
  rememberServer,
  type ServerEntry,
} from "../../src/serve/server-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();

let env: Record<string, string>;
let folder: string;
beforeEach(() => {
  const cache = mkdtempSync(join(root, "cache-"));
  env = { MLX_SERVE_CACHE: cache };
  folder = join(cache, "servers");
});

const entry: ServerEntry = {
  url: "http://127.0.0.1:8080",
  key: "sk-mlx-1",
  pid: process.pid,
  drainMs: 30_000,
};

test("a server is known from when it is remembered until it is forgotten", () => {
  expect(knownServers(env)).toEqual([]);
  rememberServer(entry, env);
  expect(knownServers(env)).toEqual([entry]);
  forgetServer(entry.pid, env);
  expect(knownServers(env)).toEqual([]);
  forgetServer(entry.pid, env);
});

test("only its owner can read a server's key", () => {
  rememberServer(entry, env);
  const modes = [folder, ...readdirSync(folder).map((name) => join(folder, name))].map(
    (path) => statSync(path).mode & 0o777,
  );
  expect(modes).toEqual([0o700, 0o600]);
});

test("what a crash has left behind is removed", async () => {
  const ended = Bun.spawn([process.execPath, "--version"], { stdout: "ignore" });
  await ended.exited;
  rememberServer({ ...entry, pid: ended.pid }, env);
  rememberServer(entry, env);
  expect(knownServers(env)).toEqual([entry]);
  expect(readdirSync(folder)).toHaveLength(1);
});

test("servers with the same port at different addresses do not forget each other", () => {
  const other = { ...entry, url: "http://[::1]:8080", pid: process.ppid };
  rememberServer(entry, env);
  rememberServer(other, env);
  expect(knownServers(env)).toHaveLength(2);
  forgetServer(entry.pid, env);
  expect(knownServers(env)).toEqual([other]);
});

test("a file that makes no sense is no server, and is left alone", () => {
  rememberServer(entry, env);
  const junk = ["1.json", "2.json", `${process.pid}.json.new`];
  writeFileSync(join(folder, junk[0]!), '{"url": "http://127.0');
  writeFileSync(join(folder, junk[1]!), JSON.stringify({ ...entry, pid: "all" }));
  writeFileSync(join(folder, junk[2]!), JSON.stringify(entry));
  expect(knownServers(env)).toEqual([entry]);
  expect(readdirSync(folder)).toEqual(expect.arrayContaining(junk));
});
