// SIGTERM while a model loads, in a process of its own with a slow disk.
import { afterAll, expect, test } from "bun:test";
import { cpSync } from "node:fs";
import { dirname, join } from "node:path";
import { expectRefusal } from "../support/fault-checks.ts";
import { makeHome, mlxServe, startMlxServe } from "../support/serve-process.ts";

const home = makeHome();
afterAll(() => home.remove());
const env = {
  ...home.env,
  BUN_OPTIONS: `--preload ${join(import.meta.dir, "../support/slow-load.ts")}`,
};

test.each([
  // Some twenty reads of 150 ms each.
  ["between two of its many reads", "slow"],
  // One of 8 seconds.
  ["in the middle of a long one", "stuck"],
])(
  "SIGTERM while a model loads, %s, ends the process with 0 in about a second",
  async (_, name) => {
    const model = join(dirname(home.model), name);
    cpSync(home.model, model, { recursive: true });
    // The address is not announced before the model is loaded.
    const port = freePort();
    const server = startMlxServe(["serve", model, "--port", String(port)], env);
    const health = await untilLoading(`http://127.0.0.1:${port}`);
    expect(health).toMatchObject({ status: "loading" });
    const waiting = fetch(`http://127.0.0.1:${port}/v1/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ prompt: "Once", max_tokens: 1 }),
    });
    await untilAdmitted(`http://127.0.0.1:${port}`);
    const startMs = performance.now();
    server.kill("SIGTERM");
    await expectRefusal(await waiting, { status: 503, code: "draining" });
    const { exitCode, stderr } = await server.ended;
    expect([exitCode, stderr]).toEqual([0, expect.stringContaining('"msg":"stopped"')]);
    expect(performance.now() - startMs).toBeLessThan(2500);
  },
  30_000,
);

test("health and ps say how far a load is", async () => {
  const model = join(dirname(home.model), "slow");
  cpSync(home.model, model, { recursive: true });
  const port = freePort();
  const server = startMlxServe(["serve", model, "--port", String(port)], env);
  const url = `http://127.0.0.1:${port}`;
  type Loading = { status: string; activity?: { kind: string; done: number; total: number } };
  let health = (await untilLoading(url)) as Loading;
  while (!health.activity?.done) {
    await Bun.sleep(20);
    health = (await untilLoading(url)) as Loading;
  }
  expect(health).toMatchObject({ status: "loading", activity: { kind: "load", model: "slow" } });
  expect(health.activity.done).toBeWithin(1, health.activity.total + 1);
  const { stdout } = await mlxServe(["ps", "--url", url], home.env);
  expect(stdout).toMatch(/: loading, the model is being loaded, loading slow \d+%\n/);
  server.kill("SIGTERM");
  expect((await server.ended).exitCode).toBe(0);
}, 30_000);

function freePort(): number {
  using socket = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data() {} } });
  return socket.port;
}

async function untilLoading(url: string): Promise<unknown> {
  for (;;) {
    const response = await fetch(`${url}/health`).catch(() => undefined);
    if (response) return await response.json();
    await Bun.sleep(10);
  }
}

async function untilAdmitted(url: string): Promise<void> {
  for (;;) {
    const text = await (await fetch(`${url}/metrics`)).text();
    if (/^mlx_serve_http_requests_admitted 1$/m.test(text)) return;
    await Bun.sleep(5);
  }
}
