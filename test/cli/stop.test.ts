import { afterAll, beforeAll, beforeEach, expect, spyOn, test } from "bun:test";
import { stop } from "../../src/cli/stop.ts";
import { knownServers, rememberServer } from "../../src/serve/server-file.ts";
import { type Home, makeHome, startMlxServe } from "../support/serve-process.ts";
import { startTestServer } from "../support/server.ts";
import { ENTER, ESCAPE, onTerminal } from "../support/terminal.ts";

const log = spyOn(console, "log").mockImplementation(() => {});
let home: Home;
beforeAll(() => {
  home = makeHome();
});
afterAll(() => {
  log.mockRestore();
  home.remove();
});
beforeEach(() => {
  log.mockClear();
});

async function startServe(...args: string[]) {
  const server = startMlxServe(["serve", home.model, "--port", "0", ...args], home.env);
  const [, url = ""] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  return { ...server, url };
}

const ask = (url: string, maxTokens: number) =>
  fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      messages: [{ role: "user", content: "Hello" }],
      ...{ stream: true, ignore_eos: true, max_tokens: maxTokens },
    }),
  });

test("stop ends the server when it has finished what is under way", async () => {
  const server = await startServe("--drain-timeout", "60s");
  const stream = await ask(server.url, 200);
  let isOver = false;
  const text = stream.text().then((text) => {
    isOver = true;
    return text;
  });
  await stop([], home.env);
  expect(isOver).toBe(true);
  expect(await text).toEndWith("data: [DONE]\n\n");
  expect(log.mock.calls).toEqual([
    [`stopping ${server.url} (process ${server.pid}): running requests may take 60 s`],
    [`${server.url} has stopped`],
  ]);
  expect((await server.ended).exitCode).toBe(0);
  await expect(stop([], home.env)).rejects.toThrow("no server is running");
}, 60_000);

test("stop of a server that is stopping already ends it at once", async () => {
  const server = await startServe("--drain-timeout", "1h");
  const stream = await ask(server.url, 4000);
  server.kill("SIGTERM");
  await server.says(/draining/);
  await stop(["--url", server.url], home.env);
  expect(log.mock.calls.join()).toContain("was already stopping: ends immediately");
  expect((await server.ended).exitCode).toBe(143);
  await expect(stream.text()).rejects.toThrow();
  expect(knownServers(home.env)).toEqual([]);
}, 60_000);

test("stop with a model unloads it, and the server goes on", async () => {
  await using server = await startTestServer();
  const entry = { url: server.url, key: "local", pid: process.pid, drainMs: 1000 };
  rememberServer(entry, home.env);
  await stop(["tiny"], home.env);
  expect(log.mock.calls).toEqual([[`tiny is unloaded from ${server.url}`]]);
  expect(await (await server.get("/ps")).json()).toEqual({ models: [], requests: [] });
  await expect(stop(["tiny"], home.env)).rejects.toThrow("The model is not loaded.");
  await expect(stop(["org/none"], home.env)).rejects.toThrow("The model does not exist");
  await expect(stop(["a", "b"], home.env)).rejects.toThrow("stop takes one model at most");
});

test("bare stop of several servers ends none, but asks on a terminal", async () => {
  const [first, second] = await Promise.all([startServe(), startServe()]);
  const urls = [first.url, second.url].sort();
  await expect(stop([], home.env)).rejects.toThrow(
    `2 servers are running: choose one with --url: ${urls.join(", ")}`,
  );
  const left = onTerminal(["stop"], home.env);
  await left.sees(/2 servers are running\. Which one\?/);
  await left.sees(/2\. http\S+ \(process \d+\)\r\n/);
  left.type(ESCAPE);
  await left.sees(/nothing was stopped/);
  expect(await left.ended).toBe(0);

  const asked = onTerminal(["stop"], home.env);
  const [, chosen] = await asked.sees(/2\. (http\S+) \(process \d+\)\r\n/);
  asked.type("2");
  await asked.sees(/> 2\. /);
  asked.type(ENTER);
  await asked.sees(new RegExp(`${chosen} has stopped`));
  expect(await asked.ended).toBe(0);
  const running = knownServers(home.env).map(({ url }) => url);
  expect(urls.map((url) => running.includes(url))).toEqual(urls.map((url) => url !== chosen));
  // One is left.
  await stop([], home.env);
  await Promise.all([first.ended, second.ended]);
}, 60_000);

test("stop signals no process that is not the server", async () => {
  const bystander = Bun.spawn(["sleep", "600"], { stdio: ["ignore", "ignore", "ignore"] });
  const gone = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response() });
  const url = gone.url.origin;
  await gone.stop(true);
  rememberServer({ url, key: "local", pid: bystander.pid, drainMs: 0 }, home.env);
  await expect(stop([], home.env)).rejects.toThrow("no server is running");
  await expect(stop(["--url", url], home.env)).rejects.toThrow(`${url} cannot be reached`);
  expect(bystander.killed).toBe(false);
  bystander.kill("SIGKILL");
  await bystander.exited;
  expect(bystander.signalCode).toBe("SIGKILL");
});

test("stop refuses a server that is not of this machine", async () => {
  await using server = await startTestServer();
  const empty = { MLX_SERVE_CACHE: `${home.env.MLX_SERVE_CACHE}/none` };
  await expect(stop(["--url", server.url], empty)).rejects.toThrow("stop it where it runs");
  expect((await server.get("/health")).status).toBe(200);
});
