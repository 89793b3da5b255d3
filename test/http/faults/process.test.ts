// What happens to the process: signals under load, and starts that cannot succeed.
import { afterAll, describe, expect, test } from "bun:test";
import { chmodSync, cpSync, mkdirSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { KeyFile } from "../../../src/keys/key-file.ts";
import { expectError, expectRefusal } from "../../support/fault-checks.ts";
import { keyEntry } from "../../support/keys.ts";
import { RawConnection, requestText } from "../../support/raw-http.ts";
import { makeHome, mlxServe, type Running, startMlxServe } from "../../support/serve-process.ts";
import { events } from "../../support/server.ts";

const home = makeHome();
afterAll(() => home.remove());
const pathOf = (name: string) => join(dirname(home.model), name);

type Server = Running & { url: string };

/** Returns when it is ready. */
const start = (...args: string[]) => startWith(home.env, ...args);

async function startWith(env: Record<string, string>, ...args: string[]): Promise<Server> {
  const server = startMlxServe(["serve", home.model, "--port", "0", ...args], env);
  const [, url] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  return { ...server, url: url! };
}

const request = { prompt: "Once upon", ignore_eos: true, temperature: 0 };
const path = "/v1/completions";

const post = ({ url }: Server, body: object, key?: string) =>
  fetch(`${url}${path}`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      ...(key !== undefined && { authorization: `Bearer ${key}` }),
    },
    body: JSON.stringify({ ...request, ...body }),
  });

type Event = { choices: { finish_reason: string | null }[] };

/** The stream finished normally. */
async function expectWhole(stream: Response, tokens: number): Promise<void> {
  const all = await events(stream);
  expect(all.at(-1)).toBe("[DONE]");
  expect((all.at(-2) as Event).choices[0]!.finish_reason).toBe("length");
  expect(all.length).toBeGreaterThan(tokens / 4);
}

describe("SIGTERM under load", () => {
  test("lets running requests finish, rejects new ones, and exits with 0", async () => {
    const server = await start();
    const streams = await Promise.all(
      [600, 400].map((max_tokens) => post(server, { max_tokens, stream: true })),
    );
    const whole = post(server, { max_tokens: 500 });
    await waitFor(server, "mlx_serve_http_requests_admitted", 3);
    server.kill("SIGTERM");
    await server.says(/"msg":"draining/);
    const health = await fetch(`${server.url}/health`);
    expect([health.status, await health.json()]).toEqual([
      503,
      {
        status: "draining",
        reason: "the server is shutting down",
        activity: { kind: "drain", requests: 3 },
      },
    ]);
    for (const stream of [false, true]) {
      const refused = await post(server, { max_tokens: 1, stream });
      expect(refused.headers.get("retry-after")).toBe("1");
      await expectRefusal(refused, { status: 503, code: "draining" });
    }
    await expectWhole(streams[0]!, 600);
    await expectWhole(streams[1]!, 400);
    const { usage } = (await (await whole).json()) as { usage: { completion_tokens: number } };
    expect(usage.completion_tokens).toBe(500);
    expect(await server.ended).toMatchObject({ exitCode: 0, stdout: "" });
  }, 30_000);

  test("ends requests at the drain timeout with an error, and exits with 0", async () => {
    const server = await start("--drain-timeout", "200ms", "--max-batch-size", "2");
    const endless = { max_tokens: 4000 };
    const streams = [
      await post(server, { ...endless, stream: true }),
      await post(server, { ...endless, stream: true }),
    ];
    const waiting = [post(server, { ...endless, stream: true }), post(server, endless)];
    await waitFor(server, "mlx_serve_requests_waiting", 2);
    server.kill("SIGTERM");
    for (const stream of streams) {
      const all = await events(stream);
      expect(all.at(-1)).toBe("[DONE]");
      expectError(all.at(-2), { code: "draining" });
    }
    for (const each of waiting) await expectRefusal(await each, { status: 503, code: "draining" });
    expect((await server.ended).exitCode).toBe(0);
  }, 30_000);

  test("does not wait for a client that does not read", async () => {
    const server = await start("--drain-timeout", "200ms", "--stream-buffer", "64");
    const body = { ...request, n: 16, max_tokens: 4000, stream: true, logprobs: 20 };
    const connection = await RawConnection.open(Number(new URL(server.url).port));
    await connection.write(requestText(path, { body }));
    await connection.receive(1000);
    connection.stopReading();
    // The slow reader's request is aborted, but its connection is still open.
    await waitFor(server, "mlx_serve_requests_running", 16);
    await waitFor(server, "mlx_serve_requests_running", 0);
    await waitFor(server, "mlx_serve_http_requests_admitted", 1);
    const startMs = performance.now();
    server.kill("SIGTERM");
    expect((await server.ended).exitCode).toBe(0);
    expect(performance.now() - startMs).toBeLessThan(10_000);
    connection.leave();
  }, 30_000);

  test.each([
    ["SIGTERM", 143],
    ["SIGINT", 130],
  ] as const)(
    "a second %s exits at once",
    async (signal, code) => {
      const server = await start();
      const stream = await post(server, { max_tokens: 4000, stream: true });
      server.kill(signal);
      await server.says(/"msg":"draining/);
      server.kill(signal);
      expect((await server.ended).exitCode).toBe(code);
      expect(await stream.text().catch(() => "broken")).not.toContain("[DONE]");
    },
    30_000,
  );
});

test("SIGHUP reloads the keys, and a stream of a removed key still finishes", async () => {
  const keysFile = pathOf("keys.json");
  const write = (...names: string[]) => {
    const keys = names.map((name) => keyEntry(name, `key-of-${name}`));
    writeFileSync(keysFile, JSON.stringify({ keys } satisfies KeyFile), { mode: 0o600 });
  };
  write("alice");
  const server = await start("--keys-file", keysFile, "--api-key", "owner");
  const status = async (name: string) =>
    (await post(server, { max_tokens: 1 }, `key-of-${name}`)).status;
  expect([await status("alice"), await status("bob")]).toEqual([200, 401]);
  const stream = await post(server, { max_tokens: 800, stream: true }, "key-of-alice");
  write("bob");
  server.kill("SIGHUP");
  await server.says(/"msg":"keys reloaded/);
  expect([await status("alice"), await status("bob")]).toEqual([401, 200]);
  writeFileSync(keysFile, "{");
  server.kill("SIGHUP");
  const [kept] = await server.says(/.*"msg":"the keys are unchanged/);
  expect(kept).toContain(`"error":"${keysFile}: not valid JSON"`);
  expect(kept).not.toContain("stack");
  expect([await status("alice"), await status("bob")]).toEqual([401, 200]);
  await expectWhole(stream, 800);
  // The next reload forgets the figures of the removed key, and warns of a file that others can read.
  write("bob");
  chmodSync(keysFile, 0o644);
  server.kill("SIGHUP");
  await server.says(/"level":40.*"msg":"\S+ can be read or written by others: `chmod 600/);
  const headers = { authorization: "Bearer owner" };
  const metrics = async () => await (await fetch(`${server.url}/metrics`, { headers })).text();
  while ((await metrics()).includes('key="alice"')) await Bun.sleep(5);
  expect(await metrics()).toContain('key="bob"');
  server.kill("SIGTERM");
  expect((await server.ended).exitCode).toBe(0);
}, 30_000);

test("errors outside any request are logged and counted, and end only a shutdown", async () => {
  const preload = join(import.meta.dir, "../../support/uncaught-errors.ts");
  const env = { ...home.env, BUN_OPTIONS: `--preload ${preload}` };
  const server = await startWith(env);
  const health = async () => {
    const response = await fetch(`${server.url}/health`);
    return [response.status, await response.json()];
  };
  expect(await health()).toEqual([200, { status: "ok" }]);
  const stream = await post(server, { max_tokens: 400, stream: true });
  server.kill("SIGUSR2");
  for (const message of ["an exception", "a rejection"]) {
    await server.says(
      new RegExp(`"message":"${message}","stack":"[^"]*uncaught-errors.ts.*"msg":"uncaught error"`),
    );
  }
  expect(await health()).toEqual([200, { status: "ok", uncaught_errors: 2 }]);
  await expectWhole(stream, 400);
  server.kill("SIGTERM");
  const { exitCode, stderr } = await server.ended;
  expect(stderr).toMatch(/"message":"batches that do not stop".*"msg":"shutdown failed"/);
  expect(exitCode).toBe(1);
}, 30_000);

describe("a start that cannot succeed is one line and an exit code", () => {
  async function expectLine(
    args: string[],
    line: string | RegExp,
    env: Record<string, string | undefined> = {},
  ): Promise<void> {
    const { exitCode, stdout, stderr } = await mlxServe(args, { ...home.env, ...env });
    expect(stderr).toMatch(/^mlx-serve: [^\n]+\n$/);
    expect(stderr).toMatch(line);
    expect([stdout, exitCode]).toEqual(["", 1]);
  }

  test("if the port is in use", async () => {
    using taken = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data() {} } });
    const port = String(taken.port);
    await expectLine(["serve", home.model, "--port", port], new RegExp(`port ${port} .*--port`));
  });

  const copy = (model: string) => cpSync(home.model, model, { recursive: true });
  const models: Record<string, [make: (model: string) => void, line: string]> = {
    "is not there": [() => {}, "no such file or folder"],
    "is an empty folder": [
      (model) => mkdirSync(model),
      "contains neither config.json nor a GGUF file",
    ],
    "is no model's file": [(model) => writeFileSync(model, "x"), "not a GGUF file"],
    "has no weights": [
      (model) => {
        copy(model);
        rmSync(`${model}/model.safetensors`);
      },
      "expected model.safetensors",
    ],
    "is cut short": [
      (model) => {
        copy(model);
        truncateSync(`${model}/model.safetensors`, 100_000);
      },
      "model.safetensors: ",
    ],
    "has a config that is no JSON": [
      (model) => {
        copy(model);
        writeFileSync(`${model}/config.json`, "{");
      },
      "config.json ",
    ],
    "cannot be read": [
      (model) => {
        copy(model);
        rmSync(`${model}/tokenizer.json`);
        mkdirSync(`${model}/tokenizer.json`);
      },
      "tokenizer.json",
    ],
  };

  test.each(Object.entries(models))("if the model %s", async (name, [make, line]) => {
    const model = pathOf(name);
    make(model);
    await expectLine(["serve", model, "--port", "0"], line);
  });

  // Every Mac that MLX runs on has a GPU.
  test.skipIf(process.platform === "darwin")("if the device is missing", async () => {
    const args = ["serve", home.model, "--port", "0"];
    await expectLine(args, "no GPU", { MLX_SERVE_BACKEND: "cuda" });
    // Nothing was set up for it.
    const none = { MLX_SERVE_BACKEND: "cuda", MLX_SERVE_MLXC: undefined };
    await expectLine(args, "libmlxc was not found: run `npm start -- --backend cuda` once", none);
  });

  test("if the disk is full", async () => {
    // No file may grow: like a full disk, except for the name of the error.
    const child = Bun.spawn(
      [
        ...["sh", "-c", `trap '' XFSZ; ulimit -f 0; exec "$@"`, "sh"],
        ...[process.execPath, "src/main.ts", "keys", "add", "bob"],
        ...["--keys-file", pathOf("new-keys.json")],
      ],
      { cwd: join(import.meta.dir, "../../.."), env: home.env, stderr: "pipe" },
    );
    expect(await new Response(child.stderr).text()).toMatch(
      /^mlx-serve: [^\n]*new-keys.json: cannot be written [^\n]*\n$/,
    );
    expect(await child.exited).toBe(1);
  });
});

/** Waits until a gauge has this value. */
async function waitFor({ url }: Server, gauge: string, value: number): Promise<void> {
  for (;;) {
    const text = await (await fetch(`${url}/metrics`)).text();
    const line = text.split("\n").find((each) => each.startsWith(gauge));
    if (Number(line?.split(" ").at(-1)) === value) return;
    await Bun.sleep(2);
  }
}
