// The first compile of a GPU's kernels, as every place tells it: an engine stands in whose first step takes so long.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { join } from "node:path";
import type { Browser } from "playwright-core";
import type { ConsoleSession } from "../../src/api/owner/console.ts";
import type { Health } from "../../src/api/owner/health.ts";
import { openConsole } from "../console/console-page.ts";
import { hasBrowser, openBrowser } from "../support/browser.ts";
import { type Home, makeHome, mlxServe, startMlxServe } from "../support/serve-process.ts";
import { onTerminal } from "../support/terminal.ts";

let home: Home;
let env: Record<string, string>;
let browser: Browser | undefined;
beforeAll(async () => {
  home = makeHome({ recites: "abcdefg \n" });
  const preload = join(import.meta.dir, "../support/compiling-engine.ts");
  env = { ...home.env, BUN_OPTIONS: `--preload ${preload}` };
  // The first time it is unpacked.
  if (hasBrowser) browser = await openBrowser();
}, 60_000);
afterAll(async () => {
  await browser?.close();
  home.remove();
});

test("run says how many kernels it has begun, and then the answer", async () => {
  const terminal = onTerminal(["run", "--local", home.model, "Hello"], env);
  await terminal.sees(/compiling kernels, once for this GPU: 1/);
  await terminal.sees(/compiling kernels, once for this GPU: 2/);
  await terminal.sees(/abc/);
  expect(await terminal.ended).toBe(0);
}, 20_000);

test("bench tells programs", async () => {
  const args = ["bench", "single", "--model", home.model, "--requests", "1", "--max-tokens", "2"];
  const quick = ["--repeat", "1", "--warmup", "0", "--json", join(home.env.HOME!, "bench.json")];
  const { stderr, exitCode } = await mlxServe([...args, ...quick], env);
  expect(exitCode).toBe(0);
  const events = stderr
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(events).toContainEqual({ event: "compile", kernel: "norm", done: 1 });
}, 20_000);

test.skipIf(!hasBrowser)(
  "a server says so at /health, and in the console",
  async () => {
    // Longer than the page takes to ask again.
    const slow = { ...env, TEST_COMPILE_MS: "2500" };
    const server = startMlxServe(["serve", home.model, "--port", "0"], slow);
    const [, url] = await server.says(/(http:\/\/[\d.]+:\d+)/);
    const one = await openConsole(browser!, url!);
    await one.page.getByLabel("Message").fill("Hello");
    await one.page.keyboard.press("Enter");
    const health = async () => (await (await fetch(`${url}/health`)).json()) as Health;
    const session = async () =>
      ((await (await fetch(`${url}/console.json`)).json()) as ConsoleSession).health;
    const both = () => Promise.all([health(), session()]);
    let told = await both();
    for (; told.some(({ activity }) => !activity); told = await both()) await Bun.sleep(50);
    const compile = { kind: "compile", done: expect.any(Number) } as const;
    expect(told[0]).toEqual({ status: "ok", activity: compile });
    expect(told[1].activity).toEqual(compile);
    await one.page.getByText(/^compiling kernels \([12]\)$/).waitFor();
    await one.page.getByRole("button", { name: "Retry" }).waitFor();
    await one.page.getByText(/^compiling kernels/).waitFor({ state: "detached" });
    expect(await health()).toEqual({ status: "ok" });
    expect(one.faults).toEqual([]);
    await one.page.close();
    server.kill("SIGTERM");
    expect((await server.ended).exitCode).toBe(0);
  },
  40_000,
);
