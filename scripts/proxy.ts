// Runs two servers behind HAProxy (from the distribution) with scripts/packaging/haproxy.cfg:
//
//   npm run -s proxy
//
// Fails unless all turns of a conversation reach one server and hit its prefix cache, for every way of sending it;
// unless the other server takes over the conversations of a killed one; and unless a draining server completes its
// streams and gets no new requests.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePorts } from "../src/ranks/group.ts";
import { makeHome, type Running, startMlxServe } from "../test/support/serve-process.ts";
import { Findings, until } from "./findings.ts";
import { findProgram, type Program } from "./setup/program.ts";

type Turn = { status: number; server: string; prefix: string; cached: number; text: string };
type Message = { role: string; content: unknown };

const home = makeHome();
const folder = mkdtempSync(join(tmpdir(), "mlx-serve-proxy-"));
const [port = 0, ...ports] = freePorts(3);
const url = `http://127.0.0.1:${port}`;
const names = ["one", "two"] as const;
const servers = new Map<string, Running>();
const findings = new Findings();
/** First number of new conversations. */
let unsaid = 1000;

const stops = [() => home.remove(), () => rmSync(folder, { recursive: true, force: true })];
try {
  await main();
} finally {
  for (const server of servers.values()) server.kill("SIGKILL");
  for (const stop of stops.reverse()) stop();
}
process.exit(findings.failures === 0 ? 0 : 1);

async function main(): Promise<void> {
  await Promise.all(names.map(start));
  await startProxy(await findProgram("haproxy", "usr/sbin/haproxy"));
  await conversations();
  await killed();
  await drained();
  await abandoned();
}

// ---- Processes

async function start(name: (typeof names)[number]): Promise<void> {
  const own = String(ports[names.indexOf(name)]);
  const args = ["serve", home.model, "--port", own, "--log-format", "json"];
  const server = startMlxServe(args, home.env);
  servers.set(name, server);
  await server.says(/"msg":"ready"/);
}

async function startProxy({ path, env }: Program): Promise<void> {
  const shown = readFileSync(join(import.meta.dir, "packaging", "haproxy.cfg"), "utf8");
  const file = join(folder, "haproxy.cfg");
  const own = [port, ...ports].reduce(
    (text, each, i) => text.replace(`:${8080 + i}`, `:${each}`),
    shown,
  );
  writeFileSync(file, own);
  const proxy = Bun.spawn([path, "-db", "-f", file], {
    env,
    stdio: ["ignore", "ignore", "inherit"],
  });
  stops.push(() => proxy.kill("SIGKILL"));
  await until("the proxy answers", async () => (await fetch(`${url}/health`)).status === 200);
}

// ---- Requests

async function say(
  messages: readonly Message[],
  headers: Record<string, string> = {},
  fields: object = {},
): Promise<Turn> {
  const response = await post({ messages, max_tokens: 8, temperature: 0, ...fields }, { headers });
  const isJson = response.headers.get("content-type")?.startsWith("application/json");
  // The proxy itself answers errors with HTML.
  const body = (isJson ? await response.json() : { html: await response.text() }) as {
    choices?: [{ message: { content: string } }];
    usage?: { prompt_tokens_details?: { cached_tokens: number } };
  };
  return {
    status: response.status,
    server: response.headers.get("x-served-by") ?? "none",
    prefix: response.headers.get("x-prefix-hash") ?? "none",
    cached: body.usage?.prompt_tokens_details?.cached_tokens ?? 0,
    text: body.choices?.[0].message.content ?? "",
  };
}

function post(body: object, init: RequestInit = {}): Promise<Response> {
  const headers = { "content-type": "application/json", ...init.headers };
  const request = { ...init, method: "POST", headers, body: JSON.stringify(body) };
  return fetch(`${url}/v1/chat/completions`, request);
}

function opening(i: number): string {
  return `${i}: ${"What is there to say about the weather? ".repeat(3)}`;
}

/** Three turns of one conversation. */
async function converse(
  i: number,
  headersOf: (last: Turn | undefined) => Record<string, string> = () => ({}),
  fields: object = {},
  beginning: readonly Message[] = [{ role: "user", content: opening(i) }],
): Promise<Turn[]> {
  const turns: Turn[] = [];
  const messages = [...beginning];
  for (let turn = 0; turn < 3; turn++) {
    const told = await say(messages, headersOf(turns.at(-1)), fields);
    turns.push(told);
    const next = { role: "user", content: `And then, the ${turn}th time?` };
    messages.push({ role: "assistant", content: told.text }, next);
  }
  return turns;
}

// ---- Findings

async function conversations(): Promise<void> {
  const system = { role: "system", content: `You are a helper. ${"Be brief. ".repeat(20)}` };
  const parts = (i: number) => [{ type: "text", text: opening(i) }];
  const ways: Record<string, (i: number) => Promise<Turn[]>> = {
    "x-session-id": (i) => converse(i, () => ({ "x-session-id": `ses_${i}` })),
    "x-claude-code-session-id": (i) => converse(i, () => ({ "x-claude-code-session-id": `c${i}` })),
    "session-id": (i) => converse(i, () => ({ "session-id": `codex-${i}` })),
    prompt_cache_key: (i) => converse(i, () => ({}), { prompt_cache_key: `key-${i}` }),
    "x-prefix-hash": (i) => converse(i, repeatPrefix),
    "the first message": (i) => converse(i),
    "the message after the system message": (i) =>
      converse(i, () => ({}), {}, [system, { role: "user", content: opening(i) }]),
    "a message in parts": (i) => converse(i, () => ({}), {}, [{ role: "user", content: parts(i) }]),
  };
  const used = new Map<string, number>();
  let at = 0;
  for (const [way, run] of Object.entries(ways)) {
    const all: Turn[][] = [];
    for (let i = 0; i < 8; i++) all.push(await run(at++));
    const isRight = all.every(
      ([first, ...more]) =>
        more.every(({ server, cached }) => server === first!.server && cached >= 96) &&
        [first!, ...more].every(({ status, prefix }) => status === 200 && prefix === first!.prefix),
    );
    for (const { server } of all.flat()) used.set(server, (used.get(server) ?? 0) + 1);
    findings.add(isRight, `conversations by ${way}`, {
      conversations: all.map(([first]) => first!.server),
      cached: all
        .flatMap((turns) => turns.slice(1).map(({ cached }) => cached))
        .sort((a, b) => a - b)[0],
    });
  }
  findings.add(
    names.every((name) => (used.get(name) ?? 0) > 0),
    "turns of each server",
    Object.fromEntries(used),
  );
}

/** Control: a different session each time. */
function repeatPrefix(last: Turn | undefined): Record<string, string> {
  const other = { "x-session-id": crypto.randomUUID() };
  return last ? { "x-prefix-hash": last.prefix, ...other } : other;
}

/** The other server answers the requests of a killed one and continues its conversations. */
async function killed(): Promise<void> {
  const numbers = Array.from({ length: 16 }, (_, i) => 100 + i);
  const ask = (i: number, fields: object) =>
    say([{ role: "user", content: opening(i) }], {}, fields);
  const before: Turn[] = [];
  for (const i of numbers) before.push(await ask(i, {}));
  const own = numbers.filter((_, i) => before[i]!.server === "one");
  const long = own.map((i) => ask(i, { max_tokens: 400, ignore_eos: true }));
  await Bun.sleep(100);
  servers.get("one")!.kill("SIGKILL");
  const during = await Promise.all(long);
  const after: Turn[] = [];
  for (const i of numbers) after.push(await ask(i, {}));
  const moved = own.length;
  findings.add(
    [...during, ...after].every(({ status }) => status === 200) &&
      after.every(({ server }) => server === "two") &&
      moved > 0 &&
      // Conversations of the other server have stayed there, cached.
      after.every(({ cached }, i) => own.includes(numbers[i]!) || cached > 0),
    "a killed server",
    { moved, stayed: numbers.length - moved, during: during.map(({ status }) => status) },
  );
  await start("one");
  await until("the killed server is back", async () => (await sayNew()).server === "one");
}

function sayNew(): Promise<Turn> {
  return say([{ role: "user", content: opening(unsaid++) }]);
}

async function drained(): Promise<void> {
  const session = { "x-session-id": await sessionAt("two") };
  const body = {
    messages: [{ role: "user", content: "Tell me a story." }],
    max_tokens: 600,
    ignore_eos: true,
    stream: true,
  };
  const response = await post(body, { headers: session });
  servers.get("two")!.kill("SIGTERM");
  const during: Turn[] = [];
  let isOver = false;
  const stream = response.text().finally(() => {
    isOver = true;
  });
  while (!isOver || during.length < 8) during.push(await say(body.messages, session));
  const text = await stream;
  const { exitCode } = await servers.get("two")!.ended;
  const isWhole = text.trimEnd().endsWith("data: [DONE]") && !text.includes('"error"');
  findings.add(
    isWhole &&
      exitCode === 0 &&
      during.every(({ status, server }) => status === 200 && server === "one"),
    "a draining server",
    { stream: isWhole ? "whole" : text.slice(-200), beside: during.length, exitCode },
  );
  await start("two");
}

/** A session that the proxy routes to this server. */
async function sessionAt(name: string): Promise<string> {
  for (let i = 0; ; i++) {
    const id = `session ${i}`;
    if ((await say([{ role: "user", content: "Hello" }], { "x-session-id": id })).server === name)
      return id;
  }
}

/** The server notices that a client has disconnected while waiting for a whole response. */
async function abandoned(): Promise<void> {
  const client = new AbortController();
  const body = {
    messages: [{ role: "user", content: "Go on." }],
    max_tokens: 3000,
    ignore_eos: true,
  };
  const asked = post(body, { signal: client.signal }).catch(() => {});
  const running = () => counted(/^mlx_serve_http_requests_admitted (\d+)/gm);
  const gone = () => counted(/^mlx_serve_requests_total\{.*outcome="gone".*\} (\d+)/gm);
  const ended = () => counted(/^mlx_serve_requests_total\{.*\} (\d+)/gm);
  const before = { gone: await gone(), ended: await ended() };
  await until("the request runs", async () => (await running()) === 1);
  client.abort();
  await asked;
  await until("the request has ended", async () => (await ended()) > before.ended);
  const found = (await gone()) - before.gone;
  findings.add(found === 1, "a disconnected client", {
    outcome: found === 1 ? "gone" : "not noticed",
  });
}

/** The sum of a metric over both servers. */
async function counted(pattern: RegExp): Promise<number> {
  const texts = await Promise.all(
    ports.map(async (each) => (await fetch(`http://127.0.0.1:${each}/metrics`)).text()),
  );
  const counts = [...texts.join("\n").matchAll(pattern)].map(([, count]) => Number(count));
  return counts.reduce((sum, each) => sum + each, 0);
}
