// Batches of a server that is killed: what was answered stays, and the rest is answered after the next start.
import { afterAll, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { BatchCaller, chatLines, type OutputLine, saidIn } from "../../support/batches.ts";
import { makeHome, type Running, startMlxServe } from "../../support/serve-process.ts";

const home = makeHome();
afterAll(() => home.remove());

/** `npm run -s batches` has 2,000, and the batch size that is the default. */
const { BATCH_LINES } = process.env;
const [LINES, KILLS] = [Number(BATCH_LINES ?? 100), 3];
const settings = BATCH_LINES === undefined ? ["--max-batch-size", "8"] : [];

type Server = Running & { caller: BatchCaller };

async function start(): Promise<Server> {
  const server = startMlxServe(["serve", home.model, "--port", "0", ...settings], home.env);
  const [, url] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  return { ...server, caller: new BatchCaller((path, init) => fetch(`${url}${path}`, init)) };
}

async function linesOf({ caller }: Server, id: string): Promise<OutputLine[]> {
  const batch = await caller.until(id);
  expect(batch).toMatchObject({
    status: "completed",
    request_counts: { total: LINES, completed: LINES, failed: 0 },
    error_file_id: null,
  });
  return await caller.lines(batch.output_file_id);
}

test(`a batch of ${LINES} lines that is killed ${KILLS} times says what it says without`, async () => {
  const lines = chatLines(LINES);
  const ids = lines.map((line) => line.custom_id);
  let server = await start();
  const { id } = await server.caller.start(lines);
  const killedAt: number[] = [];
  for (let kill = 1; kill <= KILLS; kill++) {
    const wanted = Math.floor((LINES * kill) / (KILLS + 2));
    let completed = 0;
    while (completed < wanted) {
      completed = (await server.caller.batch(id)).request_counts.completed;
    }
    server.kill("SIGKILL");
    await server.ended;
    killedAt.push(completed);
    server = await start();
    // Nothing that was answered is lost.
    const { request_counts: counts } = await server.caller.batch(id);
    expect(counts.completed).toBeGreaterThanOrEqual(completed);
  }
  expect(killedAt.every((count) => count < LINES)).toBe(true);
  const killed = await linesOf(server, id);
  expect(killed.map((line) => line.custom_id)).toEqual(ids);
  expect(new Set(killed.map((line) => line.id)).size).toBe(LINES);

  const { id: other } = await server.caller.start(lines);
  const whole = await linesOf(server, other);
  expect(killed.map(saidIn)).toEqual(whole.map(saidIn));
  server.kill("SIGTERM");
  expect((await server.ended).exitCode).toBe(0);
  // Two inputs and two outputs.
  expect(readdirSync(join(home.env.MLX_SERVE_CACHE!, "data", "batches", "files")).length).toBe(4);
}, 300_000);

test("a server that is told to stop does not wait for a batch, which goes on at the next start", async () => {
  const lines = chatLines(40, { max_tokens: 100, ignore_eos: true });
  const first = await start();
  const { id } = await first.caller.start(lines);
  while ((await first.caller.batch(id)).status !== "in_progress") await Bun.sleep(5);
  await Bun.sleep(100);
  first.kill("SIGTERM");
  const { exitCode, stderr } = await first.ended;
  expect(exitCode).toBe(0);
  expect(stderr).not.toMatch(/"level":50/);
  const second = await start();
  const batch = await second.caller.until(id);
  expect(batch.request_counts).toEqual({ total: 40, completed: 40, failed: 0 });
  second.kill("SIGTERM");
  await second.ended;
}, 120_000);
