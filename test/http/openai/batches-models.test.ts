// A batch beside requests for another model, where only one model fits.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { BatchCaller, chatLine } from "../../support/batches.ts";
import { writeChatModel } from "../../support/chat-model.ts";
import { makeHome, startMlxServe } from "../../support/serve-process.ts";

const home = makeHome();
afterAll(() => home.remove());
const commit = "0123456789abcdef0123456789abcdef01234567";
const repo = join(home.env.HOME!, ".cache/huggingface/hub/models--org--other");
mkdirSync(join(repo, "refs"), { recursive: true });
writeFileSync(join(repo, "refs", "main"), commit);
writeChatModel(join(repo, "snapshots", commit));

const LINES = 2000;

test("a batch yields to a request for another model, and goes on after it", async () => {
  const args = ["serve", home.model, "--port", "0", "--max-models", "1"];
  const server = startMlxServe(args, home.env);
  const [, url] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  const caller = new BatchCaller((path, init) => fetch(`${url}${path}`, init));
  const ask = () =>
    fetch(`${url}/v1/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: "org/other", prompt: "x", max_tokens: 2 }),
    });
  // Of different lengths, so that there is always one under way.
  const lines = Array.from({ length: LINES }, (_, i) =>
    chatLine(i + 1, { max_tokens: 20 + ((i * 37) % 79), ignore_eos: true }),
  );
  const { id } = await caller.start(lines);
  const completedNow = async () => (await caller.batch(id)).request_counts.completed;
  while ((await completedNow()) === 0) await Bun.sleep(5);
  expect((await ask()).status).toBe(503);
  const before = await completedNow();
  while ((await ask()).status !== 200) await Bun.sleep(50);
  const completed = await completedNow();
  // Those that were in flight, and none that were started since.
  expect(completed - before).toBeLessThanOrEqual(32);
  while ((await completedNow()) < completed + 50) await Bun.sleep(5);
  await caller.cancel(id);
  expect((await caller.until(id)).status).toBe("cancelled");
  server.kill("SIGTERM");
  expect((await server.ended).exitCode).toBe(0);
}, 120_000);
