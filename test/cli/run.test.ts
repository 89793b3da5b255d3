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

test("what is piped in is the prompt, or follows the one that is given", async () => {
  const sent = async (args: string[], input: string) => {
    const before = await server.metric("mlx_serve_prompt_tokens_total");
    const { stdout, stderr, exitCode } = await served([...args, "--max-tokens", "2"], input);
    expect([exitCode, stdout.split("\n").length]).toEqual([0, 2]);
    expect(stderr).not.toContain("/help");
    return (await server.metric("mlx_serve_prompt_tokens_total")) - before;
  };
  const alone = await sent(["Summarize: abc"], "");
  // A token a byte.
  expect(await sent([], "Summarize: abc\n")).toBe(alone);
  expect(await sent(["Summarize:"], "abc\ndef\n")).toBe(alone + "\n\nabc\ndef".length - 4);
  expect(await sent(["tiny"], "Summarize: abc")).toBe(alone);
  const { stderr, exitCode } = await served([], "  \n");
  expect(stderr).toMatch(/^mlx-serve: there is no prompt: give one, or pipe one in; .*\n$/);
  expect(exitCode).toBe(2);
}, 60_000);

test("one word that is no model is a prompt, unless it is nearly one", async () => {
  const { stdout, stderr, exitCode } = await served(["Hello", "--max-tokens", "2"]);
  expect(stderr).toStartWith(`tiny, from the server at ${server.url}`);
  expect([exitCode, stdout.length > 1]).toEqual([0, true]);
  for (const [word, message] of [
    ["defualt", "no model defualt"],
    ["qwen3", "no model qwen3"],
    ["org/other", "no model org/other"],
    ["other:7b", "no model other:7b"],
    ["./other", "no model ./other"],
  ] as const) {
    const ended = await served([word]);
    expect(ended.stderr).toContain(message);
    expect(ended.exitCode).toBe(1);
  }
  const here = await mlxServe(["run", "--local", "defualt"], home.env);
  expect(here.stderr).toContain("did you mean default?");
}, 60_000);

test("run takes the sampling settings of serve by all of their names", async () => {
  const asked = async (...args: string[]) => {
    const { stdout, stderr, exitCode } = await served(["Hello, who are you?", ...args]);
    expect(exitCode).toBe(0);
    return { stdout, tokens: tokensIn(stderr) };
  };
  for (const flag of ["--max-tokens", "--max_tokens", "--predict", "--n-predict", "-n"]) {
    expect((await asked(flag, "3")).tokens).toBe(3);
  }
  const sampled = await asked("--temp=0.9", "--seed", "7", "-n", "40");
  expect(await asked("--temperature", "0.9", "--seed=7", "-n", "40")).toEqual(sampled);
  const greedy = await asked("-n", "40");
  expect(sampled).not.toEqual(greedy);
  // One token to choose from is the likeliest.
  for (const flag of ["--top-k=1", "--min-p=1", "--top-p=0.0001"]) {
    expect(await asked("--temp=0.9", "--seed=7", "-n", "40", flag)).toEqual(greedy);
  }
}, 60_000);

test("run refuses what it does not understand in one line", async () => {
  const wrong: [string[], RegExp, number][] = [
    [["no-such/model", "hi", "--local"], /^mlx-serve: .*no-such\/model/, 1],
    [["../../etc/passwd", "hi", "--local"], /^mlx-serve: /, 1],
    [["--temperature", "warm", "Hello there"], /^mlx-serve: --temperature: expected a number/, 2],
    [["-n", "1.5", "Hello there"], /^mlx-serve: -n: expected a whole number/, 2],
    [["Hello there", "--top-p", "2"], /^mlx-serve: --top-p: expected a number above 0 and up/, 2],
    [["--seed", "x", "Hello there"], /^mlx-serve: --seed: expected a whole number/, 2],
    [["--dtype", "int4", "Hello there"], /^mlx-serve: --dtype: expected one of auto, float32, /, 2],
    [["--speed", "9", "Hello there"], /^mlx-serve: .*--speed/, 2],
    [["default", "two", "prompts"], /^mlx-serve: run takes a model and one prompt/, 2],
    [["--local", "--url", "http://a.example", "Hi"], /^mlx-serve: --url excludes --local /, 2],
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
    const local = ["run", "--local", home.model, "Hello, who are you?", ...args];
    const here = await mlxServe(local, home.env);
    expect(there.stdout).toBe(here.stdout);
    const [said, ...rest] = there.stderr.split("\n");
    expect(said).toBe(`tiny, from the server at ${server.url}; --local runs it here`);
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

test("run asks a server for the models that it lists, and says where there is none", async () => {
  expect((await served(["tiny", "Hello", "--max-tokens", "2"])).exitCode).toBe(0);
  expect((await served(["default", "Hello", "--max-tokens", "2"])).exitCode).toBe(0);
  for (const args of [["org/other", "Hello"], ["org/other"], [home.model, "Hello"]]) {
    const { stdout, stderr, exitCode } = await served(args);
    expect(stderr).toBe(
      `mlx-serve: the server at ${server.url} has no model ${args[0]}; --local runs it here\n`,
    );
    expect([stdout, exitCode]).toEqual(["", 1]);
  }
}, 60_000);

test("what a server refuses ends run with one line", async () => {
  const { stderr, exitCode } = await served(["a".repeat(5000)]);
  expect(stderr.trim().split("\n").at(-1)).toMatch(/^mlx-serve: http:\S+: .*context length/);
  expect(exitCode).toBe(1);
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
    `the server at ${stopping.url} is stopping: answering without it`,
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
