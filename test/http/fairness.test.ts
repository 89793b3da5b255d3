// What one key's long prompts cost another key, with the real model and default settings: in steps, and in the
// size of steps, which a busy machine does not change. `npm run -s bench:fairness` measures the time.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { defaultModelPath } from "../../ffi/native.ts";
import type { StepReport } from "../../src/engine/protocol.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { keyEntry } from "../support/keys.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

/** How long a step with prompts takes at most on a CPU. */
const TARGET_MS = 250;

const LONG = 900;
const batch = keyEntry("batch", "key-batch", { tier: "LOW" });
const keys = [keyEntry("long", "key-long"), batch, keyEntry("short", "key-short")];

let server: TestServer;
const steps: StepReport[] = [];
beforeAll(async () => {
  server = await startTestServer({ model: defaultModelPath(), keys: { keys } });
  const { log } = server.serving;
  log.debug = ((report: StepReport) => steps.push(report)) as typeof log.debug;
});
afterAll(async () => {
  await server.settled();
  await server.stop();
});

let prompts = 0;

/** A prompt of token ids, nothing of which is cached. */
async function ask(key: string, length: number, more: object = {}): Promise<void> {
  const first = 100 + prompts++;
  const prompt = Array.from({ length }, (_, i) => first + ((i * 7919) % 40_000));
  const headers = { authorization: `Bearer key-${key}` };
  const request = { prompt, max_tokens: 1, temperature: 0, ...more };
  const response = await server.post("/v1/completions", request, { headers });
  expect(response.status).toBe(200);
  await response.arrayBuffer();
}

for (const [key, more, name] of [
  ["long", {}, "of its level"],
  ["batch", {}, "of a lower level"],
  ["long", { echo: true, logprobs: 5 }, "that is scored"],
] as const) {
  test(`a short prompt waits for one step beside another key's long one ${name}`, async () => {
    steps.length = 0;
    let isOver = false;
    const long = ask(key, LONG, more).finally(() => {
      isOver = true;
    });
    while (steps.length === 0) await Bun.sleep(1);
    const waited: number[] = [];
    while (!isOver) {
      const before = steps.length;
      await ask("short", 4);
      waited.push(steps.length - before);
    }
    await long;
    // The step under way, its own, and one more that may land before the answer is read.
    expect(waited.length).toBeGreaterThan(1);
    expect(Math.max(...waited)).toBeLessThanOrEqual(3);
    // A step that took too long is followed by a smaller one.
    const sizes = steps.map(({ prefillTokens }) => prefillTokens);
    for (const [i, { ms, prefillTokens }] of steps.entries()) {
      const isLong = ms > TARGET_MS && prefillTokens > BLOCK_TOKENS;
      if (isLong) expect(sizes[i + 1] ?? 0).toBeLessThan(prefillTokens);
    }
  }, 180_000);
}
