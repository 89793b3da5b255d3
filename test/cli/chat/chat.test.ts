// The chat of `mlx-serve run`, on a terminal.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { rememberServer } from "../../../src/serve/server-file.ts";
import { type Home, makeHome } from "../../support/serve-process.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";
import { CTRL_C, CTRL_D, ENTER, onTerminal, type Terminal, UP } from "../../support/terminal.ts";

let home: Home;
let server: TestServer;
beforeAll(async () => {
  home = makeHome();
  server = await startTestServer({ model: home.model });
  rememberServer({ url: server.url, key: "local", pid: process.pid, drainMs: 1000 }, home.env);
});
afterAll(async () => {
  await server.settled();
  await server.stop();
  home.remove();
});

/** The cursor stands behind it. */
const PROMPT = /> \W\[3G$/;

async function chat(...args: string[]): Promise<Terminal> {
  const terminal = onTerminal(["run", "-n", "2", ...args], home.env);
  await terminal.sees(/tiny: \/help lists commands, \/bye quits/);
  await terminal.sees(PROMPT);
  return terminal;
}

/** What was said, as /save writes it. */
async function saved(
  terminal: Terminal,
  name: string,
): Promise<{ role: string; content: string }[]> {
  const path = join(home.env.HOME!, name);
  terminal.type(`/save ${path}${ENTER}`);
  await terminal.sees(/messages written to/);
  await terminal.sees(PROMPT);
  return JSON.parse(readFileSync(path, "utf8")).messages;
}

async function send(terminal: Terminal, keys: string): Promise<void> {
  terminal.type(keys);
  await terminal.sees(/2 tokens, /);
  await terminal.sees(PROMPT);
}

test("messages are answered, with those before them, until Ctrl-D", async () => {
  const before = await server.metric("mlx_serve_prompt_tokens_total");
  const terminal = await chat();
  await send(terminal, `One${ENTER}`);
  const one = (await server.metric("mlx_serve_prompt_tokens_total")) - before;
  await send(terminal, `One${ENTER}`);
  const two = (await server.metric("mlx_serve_prompt_tokens_total")) - before - one;
  expect(two).toBeGreaterThan(2 * one);
  terminal.type(`/clear${ENTER}`);
  await terminal.sees(PROMPT);
  await send(terminal, `One${ENTER}`);
  const three = (await server.metric("mlx_serve_prompt_tokens_total")) - before - one - two;
  expect(three).toBe(one);
  const said = await saved(terminal, "said.json");
  expect(said.map(({ role }) => role)).toEqual(["user", "assistant"]);
  terminal.type(CTRL_D);
  expect(await terminal.ended).toBe(0);
  expect(terminal.screen).toEndWith("\r\n");
}, 60_000);

test("Ctrl-C clears the line, and ends the chat the second time", async () => {
  const terminal = await chat();
  terminal.type("never sent");
  await terminal.sees(/never sent/);
  terminal.type(CTRL_C);
  await terminal.sees(PROMPT);
  await send(terminal, `sent${ENTER}`);
  expect((await saved(terminal, "cleared.json"))[0]!.content).toBe("sent");
  terminal.type("x");
  await terminal.sees(/x/);
  terminal.type(CTRL_C);
  await terminal.sees(PROMPT);
  terminal.type(CTRL_C);
  expect(await terminal.ended).toBe(0);
  expect(terminal.screen).toEndWith("\r\n");
}, 60_000);

test("Ctrl-C while an answer comes ends the answer, not the chat", async () => {
  const terminal = await chat("--max-tokens", "100000", "--seed", "1", "--temp", "1");
  terminal.type(`go on${ENTER}`);
  while ((await server.metric("mlx_serve_requests_running")) === 0) await Bun.sleep(5);
  terminal.type(CTRL_C);
  await terminal.sees(/\d+ tokens, /);
  await terminal.sees(PROMPT);
  terminal.type(`/bye${ENTER}`);
  expect(await terminal.ended).toBe(0);
}, 60_000);

test("a paste of several lines is one message, and so is what stands in quotes", async () => {
  const terminal = await chat();
  terminal.type("See: \x1b[200~one\rtwo\r\nthr");
  terminal.type("ee\x1b[20");
  terminal.type("1~!");
  await terminal.sees(/one␤two␤three!/);
  await send(terminal, ENTER);
  terminal.type(`"""first${ENTER}`);
  await terminal.sees(/\.\.\. /);
  terminal.type(`/help${ENTER}`);
  await send(terminal, `"quoted" last"""${ENTER}`);
  const said = await saved(terminal, "pasted.json");
  expect(said.filter(({ role }) => role === "user").map(({ content }) => content)).toEqual([
    "See: one\ntwo\nthree!",
    'first\n/help\n"quoted" last',
  ]);
  terminal.type(CTRL_C);
  await terminal.sees(PROMPT);
  terminal.type(CTRL_C);
  expect(await terminal.ended).toBe(0);
}, 60_000);

test("commands are carried out and not sent, and unknown ones are told", async () => {
  const before = await server.metric("mlx_serve_prompt_tokens_total");
  const terminal = await chat("--system", "Be brief.");
  const does = async (line: string, ...told: RegExp[]) => {
    terminal.type(`${line}${ENTER}`);
    for (const pattern of told) await terminal.sees(pattern);
    await terminal.sees(PROMPT);
  };
  const all = ["help", "clear", "system", "save", "model", "bye"];
  await does("/help", ...all.map((name) => new RegExp(`/${name} `)), /""" begins/);
  await does("/hlep", /there is no command \/hlep; did you mean \/help\?/);
  await does("/usr/bin", /there is no command \/usr\/bin; \/help lists commands/);
  await does("/system", /Be brief\./);
  await does("/system Be long.");
  await does("/system", /Be long\./);
  await does("/model", /tiny\r\n/);
  await does("/model org/none", /has no model org\/none/);
  await does("/model default", /tiny, from the server/);
  await does("/save", /usage: \/save <file>/);
  expect(await server.metric("mlx_serve_prompt_tokens_total")).toBe(before);
  await send(terminal, `Hello${ENTER}`);
  const said = await saved(terminal, "commands.json");
  expect(said.slice(0, 2)).toEqual([
    { role: "system", content: "Be long." },
    { role: "user", content: "Hello" },
  ]);
  await does(`/save ${join(home.env.HOME!, "commands.json")}`, /already exists/);
  terminal.type(`/exit${ENTER}`);
  expect(await terminal.ended).toBe(0);
}, 60_000);

test("the arrow keys bring back what was typed", async () => {
  const terminal = await chat();
  await send(terminal, `first${ENTER}`);
  await send(terminal, `second${ENTER}`);
  terminal.type(`${UP}${UP}`);
  await terminal.sees(/first/);
  await send(terminal, ENTER);
  const said = await saved(terminal, "history.json");
  const asked = said.filter(({ role }) => role === "user").map(({ content }) => content);
  expect(asked).toEqual(["first", "second", "first"]);
  terminal.type(`/bye${ENTER}`);
  expect(await terminal.ended).toBe(0);
}, 60_000);

test("a message that is refused is told, and the chat goes on", async () => {
  const terminal = await chat();
  terminal.type(`\x1b[200~${"a".repeat(5000)}\x1b[201~${ENTER}`);
  await terminal.sees(/context length/);
  await terminal.sees(PROMPT);
  await send(terminal, `short${ENTER}`);
  expect(await saved(terminal, "refused.json")).toHaveLength(2);
  terminal.type(`/bye${ENTER}`);
  expect(await terminal.ended).toBe(0);
}, 60_000);
