import { afterAll, beforeAll, expect, test } from "bun:test";
import { rememberServer } from "../../src/serve/server-file.ts";
import { type Home, makeHome, mlxServe } from "../support/serve-process.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let home: Home;
let server: TestServer;
/** A home where the server is known, and where no engine could be started. */
let near: Record<string, string>;
beforeAll(async () => {
  home = makeHome();
  server = await startTestServer({ model: home.model, args: ["--temperature", "1"] });
  const { MLX_SERVE_MLXC: _, ...rest } = home.env;
  near = rest;
  remember(server);
});
afterAll(async () => {
  await server.settled();
  await server.stop();
  home.remove();
});

const remember = ({ url }: { url: string }) =>
  rememberServer({ url, key: "local", pid: process.pid, drainMs: 1000 }, near);

const own = (args: string[], input?: string) =>
  mlxServe(["run", "--local", ...args], process.env, input);

test("run answers a question with the default model, and says how fast", async () => {
  const { stdout, stderr, exitCode } = await own(["What is the capital of France?"]);
  expect(stdout).toBe("The capital of France is Paris.\n");
  expect(stderr).toMatch(/^\n8 tokens, [\d.]+ tokens\/s, TTFT \d+ ms\n$/);
  expect(exitCode).toBe(0);
}, 60_000);

test("run takes a model by name, and ends at the most tokens", async () => {
  const { stdout, stderr } = await own(["default", "Count.", "--max-tokens", "3"]);
  expect(stderr).toStartWith("\n3 tokens, ");
  expect(stdout.trim().length).toBeGreaterThan(0);
}, 60_000);

test("run without a prompt is a chat that knows what was said", async () => {
  const lines = "My dog is called Waldo, and he is brown.\nWhat is the name of my dog?\n";
  const { stdout, exitCode } = await own(["--max-tokens", "24"], lines);
  expect(stdout).toContain("/clear starts over");
  expect(stdout.trim().split("\n").at(-1)).toContain("Waldo");
  expect(exitCode).toBe(0);
}, 60_000);

test("run refuses what it does not understand in one line", async () => {
  const wrong: [string[], RegExp, number][] = [
    [["no-such/model", "hi", "--local"], /^mlx-serve: .*no-such\/model/, 1],
    [["../../etc/passwd", "hi", "--local"], /^mlx-serve: /, 1],
    [["--temperature", "warm", "Hello there"], /^mlx-serve: --temperature must be a number/, 2],
    [["--max-tokens", "1.5", "Hello there"], /^mlx-serve: --max-tokens must be a whole number/, 2],
    [["--dtype", "int4", "Hello there"], /^mlx-serve: --dtype must be float32, /, 2],
    [["--speed", "9", "Hello there"], /^mlx-serve: .*--speed/, 2],
    [["default", "two", "prompts"], /^mlx-serve: run takes a model and one prompt/, 2],
    [["--local", "--url", "http://a.example", "Hi"], /^mlx-serve: --url asks a server/, 2],
    [["--url", "a.example", "Hello there"], /^mlx-serve: expected the address of a server/, 2],
  ];
  for (const [args, message, code] of wrong) {
    const { stdout, stderr, exitCode } = await mlxServe(["run", ...args], home.env);
    expect({ args, stderr: stderr.trim() }).toMatchObject({
      stderr: expect.stringMatching(message),
    });
    expect(stderr.trim()).not.toContain("\n");
    expect([stdout, exitCode]).toEqual(["", code]);
  }
}, 60_000);

const served = (args: string[], input?: string | ReadableStream) =>
  mlxServe(["run", ...args], near, input);

test("run says the same from a server that runs as from an engine of its own", async () => {
  for (const args of [
    ["--max-tokens", "40"],
    ["--max-tokens", "40", "--temperature", "0.8", "--top-p", "0.9", "--seed", "7"],
    ["--max-tokens", "40", "--system", "Be brief."],
  ]) {
    const there = await served(["Hello, who are you?", ...args]);
    const here = await mlxServe(
      ["run", "--local", home.model, "Hello, who are you?", ...args],
      home.env,
    );
    expect(there.stdout).toBe(here.stdout);
    const [said, ...rest] = there.stderr.split("\n");
    expect(said).toBe(`tiny, from the server at ${server.url}; --local does without it`);
    expect(`\n${rest.join("\n").trimStart()}`).toMatch(
      /^\n\d+ tokens, [\d.]+ tokens\/s, TTFT \d+ ms\n$/,
    );
    expect(tokensIn(there.stderr)).toBe(tokensIn(here.stderr));
    expect([there.exitCode, here.exitCode]).toEqual([0, 0]);
  }
}, 60_000);

function tokensIn(stderr: string): number {
  return Number(/^(\d+) tokens/m.exec(stderr)?.[1]);
}

test("run chats with a server that is named, and sends what was said before", async () => {
  const before = await server.metric("mlx_serve_prompt_tokens_total");
  const { stdout, stderr, exitCode } = await mlxServe(
    ["run", "--url", `${server.url}/v1`, "--max-tokens", "4"],
    { ...near, MLX_SERVE_CACHE: `${near.MLX_SERVE_CACHE}/none` },
    "One\nTwo\n/clear\nOne\n/exit\n",
  );
  expect(exitCode).toBe(0);
  expect(stdout).toStartWith("tiny: /clear starts over");
  expect(stderr.match(/^4 tokens/gm)).toHaveLength(3);
  // <|im_start|>user\nOne<|im_end|>\n<|im_start|>assistant\n, a token a byte.
  const one = 1 + 8 + 1 + 1 + 1 + 10;
  const asked = (await server.metric("mlx_serve_prompt_tokens_total")) - before;
  expect(asked).toBeGreaterThan(one + 2 * one + one);
  expect(asked).toBeLessThan(one + 4 * one + one);
}, 60_000);

test("run asks a server for the models that it lists, and says where there is none", async () => {
  expect((await served(["tiny", "Hello", "--max-tokens", "2"])).exitCode).toBe(0);
  expect((await served(["default", "Hello", "--max-tokens", "2"])).exitCode).toBe(0);
  for (const args of [["org/other", "Hello"], ["org/other"], [home.model, "Hello"]]) {
    const { stdout, stderr, exitCode } = await served(args);
    expect(stderr).toBe(
      `mlx-serve: the server at ${server.url} has no model ${args[0]}; --local does without it\n`,
    );
    expect([stdout, exitCode]).toEqual(["", 1]);
  }
}, 60_000);

test("what a server refuses ends run with one line", async () => {
  const { stderr, exitCode } = await served(["Hello there", "--top-p", "2"]);
  expect(stderr.trim().split("\n").at(-1)).toMatch(/^mlx-serve: http:\S+: Invalid 'top_p': /);
  expect(exitCode).toBe(1);
  // As at a terminal: there is always more to come.
  const open = new ReadableStream({ start: (input) => input.enqueue("Hello\nHello\n") });
  const chat = await served(["--top-p", "2"], open);
  expect(chat.stderr.match(/Invalid 'top_p'/g)).toHaveLength(1);
  expect(chat.exitCode).toBe(1);
}, 60_000);

test("run does without a server that is stopping, unless it or its model was named", async () => {
  const stopping = await startTestServer({ model: home.model, args: ["--drain-timeout", "60s"] });
  remember(stopping);
  const messages = [{ role: "user", content: "Hello" }];
  const leaving = new AbortController();
  const long = await stopping.post(
    "/v1/chat/completions",
    { messages, stream: true, ignore_eos: true, max_tokens: 4000 },
    { signal: leaving.signal },
  );
  const drained = stopping.drain();

  // There is no default model in that home: it was looked for here.
  const { stderr, exitCode } = await served(["Hello there"]);
  expect(stderr.split("\n")).toEqual([
    `the server at ${stopping.url} is stopping: this is answered without it`,
    expect.stringContaining("mlx-serve: the default model is missing"),
    "",
  ]);
  expect(exitCode).toBe(1);
  for (const args of [
    ["tiny", "Hello"],
    ["Hello there", "--url", stopping.url],
  ]) {
    const { stderr, exitCode } = await served(args);
    expect(stderr).toEndWith(`mlx-serve: ${stopping.url}: The server is shutting down.\n`);
    expect(exitCode).toBe(1);
  }

  leaving.abort();
  await long.text().catch(() => {});
  await drained;
  remember(server);
}, 60_000);
