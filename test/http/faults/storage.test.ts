// A disk that takes no more, and a folder that another server has. The system's limit on the size of a file
// stands for the full disk: writes fail in the same places.
import { afterAll, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { BatchCaller, chatLines } from "../../support/batches.ts";
import { expectRefusal } from "../../support/fault-checks.ts";
import { makeHome, type Running, startMlxServe } from "../../support/serve-process.ts";
import { startTestServer } from "../../support/server.ts";

const home = makeHome();
afterAll(() => home.remove());

type Server = Running & {
  caller: BatchCaller;
  get(path: string, init?: RequestInit): Promise<Response>;
};

async function start(launcher: string[] = [], ...flags: string[]): Promise<Server> {
  const args = ["serve", home.model, "--port", "0", ...flags];
  const server = startMlxServe(args, home.env, "", launcher);
  const [, url] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  const get = (path: string, init?: RequestInit) => fetch(`${url}${path}`, init);
  return { ...server, caller: new BatchCaller(get), get };
}

/** Files of at most so many KiB; the signal that would end the process is ignored. */
const limited = (kib: number) => ["bash", "-c", `trap '' XFSZ; ulimit -f ${kib}; exec "$@"`, "--"];

const folder = join(home.env.MLX_SERVE_CACHE!, "data", "batches", "files");

test("a full disk refuses files and delays batches, and everything else goes on", async () => {
  const small = await start(limited(256));
  const full = { status: 507, code: "storage_full" };
  await expectRefusal(await small.caller.upload("x".repeat(300_000)), full);
  expect(readdirSync(folder)).toEqual([]);
  // The answers have no room.
  const { id } = await small.caller.start(chatLines(300));
  await small.says(/"batch":"batch_\w+".*"msg":"a batch has failed and will be retried"/);
  const { status, request_counts: counts } = await small.caller.batch(id);
  expect(["validating", "in_progress"]).toContain(status);
  expect(counts.completed).toBeLessThan(300);
  const { ok } = await small.get("/v1/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ prompt: "x", max_tokens: 1 }),
  });
  expect(ok).toBe(true);
  small.kill("SIGTERM");
  expect((await small.ended).exitCode).toBe(0);
  // With room again, it goes on.
  const server = await start();
  const batch = await server.caller.until(id);
  expect(batch.request_counts).toEqual({ total: 300, completed: 300, failed: 0 });
  expect((await server.caller.lines(batch.output_file_id)).length).toBe(300);
  server.kill("SIGTERM");
  await server.ended;
}, 60_000);

test("a folder that cannot be written is told without a stack trace", async () => {
  // A file where a folder would be: root may write anywhere else.
  const server = await start([], "--data-dir", join(home.model, "config.json", "data"));
  await expectRefusal(await server.caller.upload("x"), { status: 500 });
  const response = await server.get("/v1/responses", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ input: "Hi", max_output_tokens: 16 }),
  });
  expect(response.status).toBe(200);
  await response.text();
  server.kill("SIGTERM");
  const { stderr } = await server.ended;
  expect(stderr).toMatch(
    /"error":"ENOTDIR: .*"msg":"files cannot be stored: choose another --data-dir"/,
  );
  expect(stderr).toMatch(/"error":"ENOTDIR: .*"msg":"a response could not be stored"/);
  expect(stderr).not.toContain("stack");
}, 30_000);

test("a second server on the machine says that another has the files, and answers all else", async () => {
  const first = await start();
  await first.caller.upload("x");
  const second = await start();
  expect(
    await second.says(/"msg":"files and batches are disabled: choose another --data-dir"/),
  ).toBeTruthy();
  await expectRefusal(await second.caller.upload("x"), { status: 503, code: "storage_busy" });
  await expectRefusal(await second.get("/v1/batches"), { status: 503, code: "storage_busy" });
  expect((await second.get("/v1/models")).status).toBe(200);
  first.kill("SIGTERM");
  await first.ended;
  expect((await second.caller.upload("x")).status).toBe(200);
  second.kill("SIGTERM");
  await second.ended;
}, 60_000);

test("files and batches are closed when the server stops", async () => {
  await using server = await startTestServer();
  await new BatchCaller(server.get).upload("x");
  await server.serving.batches.stop();
  await expectRefusal(await server.get("/v1/files"), { status: 503, code: "draining" });
});
