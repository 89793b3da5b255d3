import { afterAll, beforeAll, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { type Home, makeHome, mlxServe, startMlxServe } from "../support/serve-process.ts";

let home: Home;
beforeAll(() => {
  home = makeHome();
});
afterAll(() => home.remove());

const servers = () => readdirSync(join(home.env.MLX_SERVE_CACHE!, "servers"));

const ask = (url: string, body: object = {}) =>
  fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content: "Hello" }], ...body }),
  });

test("serve says where it is, answers there, and ends with 0 when it is told to stop", async () => {
  const args = ["serve", home.model, "--port", "0", "--log-format", "pretty"];
  const server = startMlxServe(args, home.env);
  const [, url = ""] = await server.says(/address +(http:\/\/127\.0\.0\.1:\d+)\/v1\n/);
  expect(url).not.toEndWith(":0");
  expect(servers()).toEqual([`${server.pid}.json`]);

  const response = await ask(url, { max_tokens: 3 });
  expect(await response.json()).toMatchObject({ model: "tiny", usage: { completion_tokens: 3 } });

  server.kill("SIGTERM");
  const { stderr, stdout, exitCode } = await server.ended;
  expect([stdout, exitCode]).toEqual(["", 0]);
  expect(servers()).toEqual([]);
  expect(stderr).toMatch(
    new RegExp(
      [
        "",
        "mlx-serve \\d+\\.\\d+\\.\\d+",
        "  model     tiny, float32, context of 4096 tokens",
        "  device    .* \\(\\w+\\)",
        "  memory    weights .*, KV .* \\(\\d+ blocks\\)",
        "  batching  up to 32 at once",
        "  keys      none needed",
        `  address   ${url}/v1`,
        `  docs      ${url}/docs`,
        "",
        `  curl ${url}/v1/chat/completions -H .*`,
      ].join("\n"),
    ),
  );
}, 30_000);

test("serve says that a flag or the memory has cut the model's length", async () => {
  for (const [flag, length, cut] of [
    ["--max-model-len=512", 512, "--max-model-len cuts the model's own length of 4096"],
    ["--block-pool-size=4", 128, "the memory for KV blocks cuts the model's own length of 4096"],
  ] as const) {
    const args = ["serve", home.model, "--port=0", "--log-format=pretty", flag];
    const server = startMlxServe(args, home.env);
    await server.says(/address /);
    server.kill("SIGTERM");
    const { stderr } = await server.ended;
    expect(stderr).toContain(`context of ${length} tokens\n            ${cut}`);
  }
}, 30_000);

test("serve logs JSON without a terminal: ready, each request, and the end", async () => {
  const server = startMlxServe(["--model", home.model, "--port", "0"], home.env);
  const [, url = ""] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  const stream = await ask(url, { stream: true, ignore_eos: true, max_tokens: 300 });
  // It drains: what is under way is finished.
  server.kill("SIGTERM");
  expect(await stream.text()).toEndWith("data: [DONE]\n\n");
  const { stderr, exitCode } = await server.ended;
  expect(exitCode).toBe(0);
  const lines = stderr
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(lines).toMatchObject([
    { msg: "ready", model: "tiny", url },
    { msg: "draining; a second signal ends immediately", signal: "SIGTERM", requests: 1 },
    { msg: "request", status: 200, completionTokens: 300 },
    { msg: "stopped" },
  ]);
  expect(stderr).not.toContain("Hello");
}, 30_000);

test("a second signal ends it at once", async () => {
  const args = ["serve", home.model, "--port", "0", "--drain-timeout", "1h"];
  const server = startMlxServe(args, home.env);
  const [, url = ""] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  const long = await ask(url, { stream: true, ignore_eos: true, max_tokens: 4000 });
  server.kill("SIGTERM");
  await server.says(/draining/);
  server.kill("SIGTERM");
  expect((await server.ended).exitCode).toBe(143);
  await expect(long.text()).rejects.toThrow();
}, 30_000);

test("a port that is taken is one line that says what to do", async () => {
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, "127.0.0.1", resolve));
  const { port } = other.address() as { port: number };
  const { stderr, exitCode } = await mlxServe(["serve", home.model, `--port=${port}`], home.env);
  other.close();
  expect(stderr).toBe(
    `mlx-serve: port ${port} on 127.0.0.1 is taken: stop the process that uses it, or choose another with --port\n`,
  );
  expect(exitCode).toBe(1);
  expect(servers()).toEqual([]);
}, 30_000);

test("a port that another mlx-serve has says how to stop that one", async () => {
  const server = startMlxServe(["serve", home.model, "--port", "0"], home.env);
  const [, url = ""] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  const port = new URL(url).port;
  const { stderr, exitCode } = await mlxServe(["serve", home.model, `--port=${port}`], home.env);
  expect(stderr).toContain(`taken by mlx-serve (process ${server.pid})`);
  expect(stderr).toContain(`\`mlx-serve stop --url ${url}\``);
  expect(exitCode).toBe(1);
  // The one that runs is still known.
  expect(servers()).toEqual([`${server.pid}.json`]);
  server.kill("SIGTERM");
  await server.ended;
}, 30_000);

test("an address that others can reach is refused without keys, with advice", async () => {
  const args = ["serve", home.model, "--host", "0.0.0.0", "--port", "0"];
  const { stderr, exitCode } = await mlxServe(args, home.env);
  expect(stderr).toMatch(/^mlx-serve: on 0\.0\.0\.0 .*--api-key.*keys add.*--insecure-no-auth\n$/);
  expect(exitCode).toBe(2);
}, 30_000);

test("with keys it listens for others, and calls itself by an address of this machine", async () => {
  const args = ["serve", home.model, "--host", "0.0.0.0", "--port", "0", "--api-key", "secret"];
  const server = startMlxServe([...args, "--log-format", "pretty"], home.env);
  const [, url = ""] = await server.says(/address +(\S+)\/v1, on all addresses of this machine\n/);
  expect(url).toStartWith("http://127.0.0.1:");
  await server.says(/-H "Authorization: Bearer \$KEY"/);
  expect((await ask(url)).status).toBe(401);
  server.kill("SIGTERM");
  expect((await server.ended).stderr).not.toContain("secret");
}, 30_000);

test("--ollama-port is told, and one that is taken is an error that names the flag", async () => {
  const args = ["serve", home.model, "--port", "0", "--ollama-port"];
  const server = startMlxServe([...args, "0", "--log-format", "pretty"], home.env);
  const [, url = ""] = await server.says(/ollama +(http:\S+)\n/);
  expect(await (await fetch(`${url}/api/version`)).json()).toEqual({ version: expect.any(String) });
  const { port } = new URL(url);
  const { stderr, exitCode } = await mlxServe([...args, port], home.env);
  expect(stderr).toMatch(
    new RegExp(
      `^mlx-serve: port ${port} on 127\\.0\\.0\\.1 is taken.*choose another with --ollama-port\n$`,
    ),
  );
  expect(exitCode).toBe(1);
  server.kill("SIGTERM");
  expect((await server.ended).exitCode).toBe(0);
}, 30_000);

test("serve goes on where it can leave no word of itself", async () => {
  const env = { ...home.env, MLX_SERVE_CACHE: join(home.model, "config.json") };
  const server = startMlxServe(["serve", home.model, "--port", "0"], env);
  const [, url = ""] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  const [warning] = await server.says(/.*will not discover this server.*/);
  expect(warning).toMatch(/"error":"(EEXIST|ENOTDIR): /);
  expect(warning).not.toContain("stack");
  expect((await ask(url, { max_tokens: 3 })).status).toBe(200);
  server.kill("SIGTERM");
  expect((await server.ended).exitCode).toBe(0);
}, 30_000);

test("a model that is not there is one line and no server", async () => {
  const args = ["serve", join(home.model, "nothing"), "--port", "0"];
  const { stderr, exitCode } = await mlxServe(args, home.env);
  expect(stderr).toMatch(/^mlx-serve: .*no such file or folder\n$/);
  expect(exitCode).toBe(1);
  expect(servers()).toEqual([]);
}, 30_000);
