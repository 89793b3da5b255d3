import { afterAll, beforeAll, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  chooseServer,
  findServer,
  health,
  listModels,
  needServer,
  readPs,
  type Server,
  streamChat,
  unloadModel,
} from "../../../src/cli/server/server-client.ts";
import { UsageError } from "../../../src/config/usage-error.ts";
import { rememberServer } from "../../../src/serve/server-file.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";

const root = mkdtempSync(join(tmpdir(), "server-client-"));
let real: TestServer;
beforeAll(async () => {
  real = await startTestServer({ args: ["--api-key", "secret"] });
});
afterAll(async () => {
  await real.settled();
  await real.stop();
  rmSync(root, { recursive: true });
});

let env: Record<string, string>;
beforeEach(() => {
  env = { MLX_SERVE_CACHE: mkdtempSync(join(root, "cache-")) };
});

/** As if this process were the server. */
const remember = (url: string, pid = process.pid) =>
  rememberServer({ url, key: `key-of-${pid}`, pid, drainMs: 1000 }, env);

/** Something that listens, and answers everything with this. */
function listen(answer: () => Response) {
  return Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: answer });
}

/** A port where no server listens any more. */
async function closedUrl(): Promise<string> {
  const server = listen(() => new Response());
  const { origin } = server.url;
  await server.stop(true);
  return origin;
}

const known = (url: string, key?: string): Server => {
  return { url, key, isNamed: true, entry: undefined };
};

test("where no server runs, none is found", async () => {
  expect(await findServer({}, env)).toBeUndefined();
  await expect(needServer({}, env)).rejects.toThrow("no server is running: `mlx-serve serve`");
});

test("a server that runs here is found with its own key", async () => {
  remember(real.url);
  env.MLX_SERVE_API_KEY = "another";
  expect(await findServer({}, env)).toMatchObject({
    url: real.url,
    key: `key-of-${process.pid}`,
    isNamed: false,
    entry: { pid: process.pid },
  });
  expect(await findServer({ "api-key": "mine" }, env)).toMatchObject({ key: "mine" });
});

test("a process that does not listen is no server, whatever its file says", async () => {
  remember(await closedUrl());
  expect(await findServer({}, env)).toBeUndefined();
});

test("a server is named by a flag, or else by the environment", async () => {
  env.MLX_SERVE_URL = "http://one.example:9000/v1/";
  env.MLX_SERVE_API_KEY = "first,second";
  expect(await findServer({}, env)).toEqual(known("http://one.example:9000", "first"));
  const flags = { url: "https://two.example/models/", "api-key": "third" };
  expect(await findServer(flags, env)).toEqual(known("https://two.example/models", "third"));
  for (const url of ["two.example:80", "ftp://two.example", "", "a\nb"]) {
    const error = await findServer({ url }, env).catch((error: unknown) => error);
    expect(error).toBeInstanceOf(UsageError);
    expect((error as Error).message).not.toContain("\n");
  }
});

test("a server of this machine that is named has its key too, by any of the machine's names", async () => {
  remember(real.url);
  const { port } = new URL(real.url);
  env.MLX_SERVE_API_KEY = "another";
  const local = { key: `key-of-${process.pid}`, entry: { pid: process.pid } };
  expect(await findServer({ url: real.url }, env)).toMatchObject(local);
  expect(await findServer({ url: `http://localhost:${port}/` }, env)).toMatchObject(local);
  const others = [`http://elsewhere.example:${port}`, "http://127.0.0.1:1"];
  for (const url of others) {
    expect(await findServer({ url }, env)).toEqual(known(url, "another"));
  }
});

test("of several servers one must be named, unless one is at the default port", async () => {
  const others = [listen(() => new Response()), listen(() => new Response())];
  const urls = others.map(({ url }) => url.origin);
  remember(urls[0]!);
  remember(urls[1]!, process.ppid);
  const error = await findServer({}, env).catch((error: unknown) => error);
  expect(String(error)).toContain("2 servers are running: choose one with --url");
  for (const url of urls) expect(String(error)).toContain(url);
  expect(await findServer({ url: urls[1]! }, env)).toMatchObject({ url: urls[1]! });
  for (const other of others) await other.stop(true);
  const [first, second, atDefault] = ["8081", "8082", "8080"].map((port) => {
    return { url: `http://127.0.0.1:${port}`, key: "", pid: 1, drainMs: 0 };
  });
  expect(chooseServer([first!, atDefault!, second!])).toBe(atDefault!);
  const twice = { ...atDefault!, url: "http://[::1]:8080" };
  expect(() => chooseServer([atDefault!, twice])).toThrow("2 servers are running");
});

test("what a server tells is read", async () => {
  const server = known(real.url, "secret");
  expect(await health(server)).toEqual({ status: "ok" });
  expect(await listModels(server)).toMatchObject([{ id: "tiny", max_model_len: 4096 }]);
  expect(await readPs(server)).toMatchObject({ models: [{ name: "tiny" }], requests: [] });
});

test("an answer comes as its events, and ends when its reader leaves", async () => {
  const server = known(real.url, "secret");
  const question = {
    messages: [{ role: "user" as const, content: "Hello" }],
    max_tokens: 5,
    ignore_eos: true,
    return_token_ids: true,
  };
  const chunks = await Array.fromAsync(streamChat(server, question));
  expect(chunks[0]).toMatchObject({ object: "chat.completion.chunk", model: "tiny" });
  const choices = chunks.flatMap(({ choices }) => choices);
  expect(choices.flatMap(({ token_ids: ids }) => ids ?? [])).toHaveLength(5);
  expect(choices.at(-1)?.finish_reason).toBe("length");

  const long = { ...question, max_tokens: 4000 };
  for await (const _ of streamChat(server, long)) break;
  await real.settled();
  const leaving = new AbortController();
  const left = (async () => {
    for await (const _ of streamChat(server, long, leaving.signal)) leaving.abort();
  })();
  await expect(left).rejects.toThrow();
  await real.settled();
});

test("what a server refuses is one line with its address", async () => {
  const messages = [{ role: "user" as const, content: "Hello" }];
  const chat = async (server: Server, model: string) => {
    for await (const _ of streamChat(server, { messages, model }));
  };
  const owner = known(real.url, "secret");
  const closed = await closedUrl();
  const page = listen(() => new Response("<html>\n</html>"));
  const broken = listen(() => new Response("<html>\n</html>", { status: 502 }));
  for (const [fail, message] of [
    [() => chat(owner, "no-such-model"), `${real.url}: The model does not exist: `],
    [() => unloadModel(owner, "org/none"), `${real.url}: The model does not exist: `],
    [() => readPs(known(real.url)), `${real.url}: A key is needed: `],
    [() => readPs(known(real.url, "wrong")), `${real.url}: The server does not know this key`],
    [() => chat(known(real.url), "default"), `${real.url}: A key is needed: `],
    [() => health(known(closed)), `${closed} cannot be reached (ECONNREFUSED)`],
    [
      () => listModels(known(page.url.origin)),
      `${page.url.origin} does not respond like mlx-serve`,
    ],
    [() => listModels(known(broken.url.origin)), `${broken.url.origin} answered 502`],
  ] as const) {
    const error = await fail().catch((error: unknown) => error);
    expect(error).toBeInstanceOf(Error);
    expect((error as Error).message).toStartWith(message);
    expect((error as Error).message).not.toContain("\n");
  }
  await page.stop(true);
  await broken.stop(true);
});

test("an answer that fails on the way, or is cut off, is an error", async () => {
  const chunk = JSON.stringify({
    ...{ id: "a", created: 1, model: "m", system_fingerprint: "f" },
    object: "chat.completion.chunk",
    choices: [{ index: 0, delta: { content: "Hi" }, logprobs: null, finish_reason: null }],
  });
  const error = { message: "The answer\nfailed.", type: "server_error", param: null, code: null };
  const answers = [`data: ${JSON.stringify({ error })}\n\ndata: [DONE]\n\n`, "", "data: {]\n\n"];
  const server = listen(() => new Response(`data: ${chunk}\n\n${answers.shift()}`));
  const url = server.url.origin;
  const messages = [{ role: "user" as const, content: "Hello" }];
  for (const message of [
    `${url}: The answer failed.`,
    `${url}: the answer was cut off`,
    `${url} does not respond like mlx-serve`,
  ]) {
    const texts: (string | undefined)[] = [];
    const answer = (async () => {
      for await (const { choices } of streamChat(known(url), { messages })) {
        texts.push(choices[0]?.delta.content);
      }
    })();
    await expect(answer).rejects.toThrow(message);
    expect(texts).toEqual(["Hi"]);
  }
  await server.stop(true);
});
