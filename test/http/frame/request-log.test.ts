// The log lines of a server of its own process, and what clients can do to them.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { keyEntry } from "../../support/keys.ts";
import { exchange, requestText } from "../../support/raw-http.ts";
import { type Home, makeHome, startMlxServe } from "../../support/serve-process.ts";

let home: Home;
beforeAll(() => {
  home = makeHome();
});
afterAll(() => home.remove());

const headers = { Connection: "close" };
const hostilePaths = [
  "/%0a[03:04:05] INFO: FAKE 1",
  "/%0d%0aFAKE%1b[31m%1b]0;FAKE%07",
  "/%7f%c2%9b2J%e2%80%a8FAKE%e2%80%ae%d8%9c",
  "/\u009b31mFAKE",
  "/%00FAKE",
];

/** What the server logs of requests without a key for these paths. */
async function logged(format: string, paths: readonly string[]): Promise<string[]> {
  const flags = ["--port=0", "--api-key=secret", `--log-format=${format}`];
  const server = startMlxServe(["serve", home.model, ...flags], home.env);
  const [, port] = await server.says(/http:\/\/127\.0\.0\.1:(\d+)/);
  for (const path of paths) {
    await exchange(Number(port), requestText(path.replaceAll(" ", "%20"), { headers }));
  }
  const target = Buffer.from(
    "GET /\xff\xfeFAKE\xe2\x80\xae HTTP/1.1\r\nHost: localhost\r\n",
    "latin1",
  );
  await exchange(Number(port), Buffer.concat([target, Buffer.from("Connection: close\r\n\r\n")]));
  server.kill("SIGTERM");
  const { stderr } = await server.ended;
  return stderr.split("\n");
}

test("a path cannot write lines or commands into the log of a terminal", async () => {
  const lines = await logged("pretty", hostilePaths);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  expect(lines.join("\n").match(/[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e]/g)).toBeNull();
  const forged = lines.filter((line) => line.includes("FAKE"));
  expect(forged.length).toBeGreaterThanOrEqual(hostilePaths.length - 1);
  for (const line of forged) expect(line).toMatch(/^\[[\d:]+\] INFO: GET \/.*FAKE/);
}, 60_000);

test("a long path is cut, and one in JSON is one value", async () => {
  const long = `/${"a".repeat(12_000)}`;
  const lines = await logged("json", [long, ...hostilePaths]);
  const requests = lines.filter(Boolean).map((line) => JSON.parse(line));
  const paths = requests.filter(({ msg }) => msg === "request").map(({ path }) => path);
  expect(paths[0]).toBe(`${long.slice(0, 1024)}...`);
  expect(paths[1]).toBe("/\n[03:04:05] INFO: FAKE 1");
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThan(2000);
}, 60_000);

test("lines of refusals say why, and those of a drain are no errors", async () => {
  const path = join(home.env.HOME!, "refusing-keys.json");
  const limits = { requests_per_minute: 1 };
  const keys = [keyEntry("alice", "sk-alice", { limits }), keyEntry("bob", "sk-bob")];
  writeFileSync(path, JSON.stringify({ keys }), { mode: 0o600 });
  const flags = ["--port=0", "--log-format=json", `--keys-file=${path}`, "--drain-timeout=1m"];
  const server = startMlxServe(["serve", home.model, ...flags], home.env);
  const [, url] = await server.says(/"url":"(\S+?)".*"msg":"ready"/);
  const leaving = new AbortController();
  const ask = (key: string, id: string, maxTokens = 1) =>
    fetch(`${url}/v1/completions`, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        authorization: `Bearer ${key}`,
        "x-request-id": id,
      },
      body: JSON.stringify({ prompt: "Hi", max_tokens: maxTokens, stream: true, ignore_eos: true }),
      signal: leaving.signal,
    });
  await (await ask("sk-alice", "first")).text();
  await (await ask("sk-alice", "limited")).text();
  await (await ask("sk-nobody", "unknown")).text();
  await ask("sk-bob", "long", 4000);
  server.kill("SIGTERM");
  await server.says(/"msg":"draining/);
  await (await ask("sk-bob", "late")).text();
  leaving.abort();
  const { stderr } = await server.ended;
  const lines = stderr
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));
  const lineOf = (id: string) => lines.find((line) => line.id === id && line.msg === "request");
  expect(lineOf("limited")).toMatchObject({
    level: 30,
    key: "alice",
    status: 429,
    reason: "rate_limit_exceeded",
    error: expect.stringContaining("Rate limit reached for requests per minute: limit 1"),
  });
  expect(lineOf("unknown")).toMatchObject({
    level: 30,
    status: 401,
    reason: "invalid_api_key",
    error: "The server does not know this key.",
  });
  expect(lineOf("late")).toMatchObject({ level: 30, status: 503, reason: "draining" });
  expect(lines.filter(({ level }) => level >= 40)).toEqual([]);
}, 60_000);

test("at debug level a request's line says where its prompt parted from what was cached", async () => {
  const flags = ["--port=0", "--log-format=json", "--log-level=debug"];
  const server = startMlxServe(["serve", home.model, ...flags], home.env);
  const [, url] = await server.says(/"url":"([^"]+)"/);
  const prompts = ["a".repeat(100), `${"a".repeat(70)}b${"a".repeat(29)}`, "a".repeat(100)];
  for (const [i, prompt] of prompts.entries()) {
    const response = await fetch(`${url}/v1/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-request-id": `request-${i}` },
      body: JSON.stringify({ prompt, max_tokens: 2 }),
    });
    await response.json();
  }
  server.kill("SIGTERM");
  const { stderr } = await server.ended;
  const lines = stderr.split("\n").filter((line) => line.includes('"msg":"request"'));
  const misses = prompts.map((_, i) => {
    const own = lines.find((line) => line.includes(`"id":"request-${i}"`));
    return JSON.parse(own!).prefixMiss;
  });
  expect(misses).toEqual([
    { at: 0, token: "a", resumed: 0 },
    { at: 70, token: "b", cached: "a", resumed: 64 },
    undefined,
  ]);
});

test("the line of a chat names the field of its API that the token comes from", async () => {
  const flags = ["--port=0", "--log-format=json", "--log-level=debug"];
  const server = startMlxServe(["serve", home.model, ...flags], home.env);
  const [, url] = await server.says(/"url":"([^"]+)"/);
  const long = (text: string) => `${text} `.repeat(40).trim();
  const tools = [{ name: "look", description: long("look"), input_schema: { type: "object" } }];
  const chat = (...texts: string[]) =>
    texts.map((content, i) => {
      return { role: i % 2 === 0 ? "user" : "assistant", content };
    });
  const messages = "/v1/messages";
  const asked: [path: string, body: object, field: string][] = [
    [messages, { system: long("one"), messages: chat(long("two")) }, "system"],
    [messages, { system: long("one"), messages: chat(long("three")) }, "messages[0]"],
    [messages, { system: long("one"), messages: chat(long("three"), "a", "b") }, "messages[1]"],
    [messages, { system: long("one"), messages: chat(long("three"), "a", "c") }, "messages[2]"],
    [messages, { system: long("four"), messages: chat("a"), tools }, "system"],
    [
      messages,
      { system: long("four"), messages: chat("a"), tools: [{ ...tools[0], description: "other" }] },
      "tools",
    ],
    ["/v1/chat/completions", { messages: chat(long("five"), long("six"), "a") }, "messages[0]"],
    ["/v1/chat/completions", { messages: chat(long("five"), long("7"), "a") }, "messages[1]"],
    ["/v1/responses", { instructions: long("8"), input: chat(long("9")) }, "instructions"],
    ["/v1/responses", { instructions: long("8"), input: chat(long("0")) }, "input[0]"],
  ];
  for (const [i, [path, body]] of asked.entries()) {
    const response = await fetch(`${url}${path}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-request-id": `request-${i}.` },
      body: JSON.stringify({
        model: "default",
        ...(path !== "/v1/responses" && { max_tokens: 1 }),
        ...(path === "/v1/responses" && { max_output_tokens: 16 }),
        ...body,
      }),
    });
    expect([path, response.status]).toEqual([path, 200]);
    await response.json();
  }
  server.kill("SIGTERM");
  const { stderr } = await server.ended;
  const lines = stderr.split("\n").filter((line) => line.includes('"msg":"request"'));
  const fields = asked.map((_, i) => {
    const own = lines.find((line) => line.includes(`"id":"request-${i}."`));
    return JSON.parse(own!).prefixMiss?.field;
  });
  expect(fields).toEqual(asked.map(([, , field]) => field));
}, 30_000);
