import { afterAll, beforeAll, beforeEach, expect, spyOn, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ps } from "../../src/cli/ps.ts";
import { forgetServer, rememberServer } from "../../src/serve/server-file.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

const log = spyOn(console, "log").mockImplementation(() => {});
const root = mkdtempSync(join(tmpdir(), "cli-ps-"));
const env = { MLX_SERVE_CACHE: root };
let server: TestServer;
beforeAll(async () => {
  // One at a time, so that one waits. The other takes seconds, however busy the machine is.
  const args = ["--no-batching", "--kv-memory", "100MiB"];
  server = await startTestServer({ maxPositions: 2 ** 16, args });
});
afterAll(async () => {
  log.mockRestore();
  await server.settled();
  await server.stop();
  rmSync(root, { recursive: true });
});
beforeEach(() => {
  log.mockClear();
  const entry = { url: server.url, key: "local", pid: process.pid, drainMs: 1000 };
  rememberServer(entry, env);
});

async function shown(...args: string[]): Promise<string> {
  await ps(args, env);
  return String(log.mock.calls.at(-1)![0]);
}

test("ps of an idle server has its models, and no requests", async () => {
  const [head, models, requests, ...more] = (await shown()).split("\n\n");
  expect(head).toBe(`${server.url} (process ${process.pid}): ok`);
  expect(models).toMatch(
    /^MODEL +WEIGHTS +KV +KV USED +SHARED +SNAPSHOTS +RUNNING +WAITING +STEPS +PREFIX HITS\ntiny +329 kB +\S+ .B +0% +0 +- +0 +0 +0 +-$/,
  );
  expect(requests).toBe("no requests");
  expect(more).toEqual([]);
});

test("ps shows running and waiting requests, and their tokens so far", async () => {
  const leaving = new AbortController();
  const ask = (id: string, stream: boolean) =>
    server.post(
      "/v1/batch/chat/completions",
      {
        messages: [{ role: "user", content: "Hello" }],
        ...{ max_tokens: 60_000, ignore_eos: true, stream },
      },
      { headers: { "x-request-id": id }, signal: leaving.signal },
    );
  // Read, or the server disconnects it as one that does not keep up.
  const first = (await ask("first", true)).text().catch(() => {});
  const second = ask("second", false).catch(() => {});
  while ((await server.metric("mlx_serve_requests_waiting")) === 0) await Bun.sleep(5);

  const [, models, requests] = (await shown()).split("\n\n");
  expect(models).toMatch(/\ntiny +\S+ .B +\S+ .B +\d+% +0 +- +1 +1 +[1-9]\d* +0%$/);
  const lines = requests!.split("\n");
  expect(lines[0]).toMatch(
    /^REQUEST +MODEL +TIER +STATE +AGE +STANDING +PROMPT +GENERATED +PREEMPTED$/,
  );
  expect(lines.slice(1).sort()).toEqual([
    expect.stringMatching(/^first +tiny +LOW +running +\d+\.\d s +\d+\.\d +\d+ +[1-9]\d* +0$/),
    expect.stringMatching(/^second +tiny +LOW +waiting +\d+\.\d s +\d+\.\d +\d+ +0 +0$/),
  ]);

  const [all] = JSON.parse(await shown("--json"));
  expect(all).toMatchObject({
    url: server.url,
    status: "ok",
    models: [{ name: "tiny", running: 1, waiting: 1, blocks: { total: expect.any(Number) } }],
    requests: expect.arrayContaining([expect.objectContaining({ id: "second", tier: "LOW" })]),
  });
  leaving.abort();
  await Promise.all([first, second]);
  await server.settled();
});

test("ps shows how many blocks answers share", async () => {
  await using batching = await startTestServer();
  const leaving = new AbortController();
  const body = { prompt: "a".repeat(70), n: 2, max_tokens: 3500, ignore_eos: true, stream: true };
  const response = await batching.post("/v1/completions", body, { signal: leaving.signal });
  // A stream that nobody reads is soon disconnected.
  const reading = response.text().catch(() => {});
  // The third block is shared too, until one of them writes to it.
  while ((await batching.metric("mlx_serve_kv_shared_blocks")) !== 2) await Bun.sleep(5);
  const { url } = batching;
  rememberServer({ url, key: "local", pid: process.pid, drainMs: 1000 }, env);
  expect((await shown()).split("\n\n")[1]).toMatch(/\ntiny +\S+ .B +\S+ .B +\d+% +2 +- +2 +0 /);
  leaving.abort();
  await reading;
  await batching.settled();
});

test("ps lists every server that runs", async () => {
  await using other = await startTestServer();
  const bystander = Bun.spawn(["sleep", "600"], { stdio: ["ignore", "ignore", "ignore"] });
  rememberServer({ url: other.url, key: "local", pid: bystander.pid, drainMs: 1000 }, env);
  const text = await shown();
  for (const { url } of [server, other]) expect(text).toContain(`${url} (process `);
  expect(text.match(/^MODEL /gm)).toHaveLength(2);
  const all: { url: string; pid: number }[] = JSON.parse(await shown("--json"));
  expect(all.map(({ url }) => url).sort()).toEqual([server.url, other.url].sort());
  expect((await shown("--url", other.url)).match(/^MODEL /gm)).toHaveLength(1);
  forgetServer(bystander.pid, env);
  bystander.kill();
});

test("ps without a server says so", async () => {
  const empty = { MLX_SERVE_CACHE: join(root, "empty") };
  await expect(ps([], empty)).rejects.toThrow("no server is running");
  const url = "http://127.0.0.1:1";
  await expect(ps(["--url", url], empty)).rejects.toThrow(`${url} cannot be reached`);
});

test("ps refuses what it does not know, by name", async () => {
  await expect(ps(["--frobnicate"], env)).rejects.toThrow("--frobnicate");
  await expect(ps(["what"], env)).rejects.toThrow("what");
});
