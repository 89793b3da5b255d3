// What open consoles cost the engine: the throughput of 64 streams with three clients of the engine's feed, and with
// none, in turn. `npm run -s bench:console [-- --rounds 5 --seconds 8 --model <path> --tiny --browser]`
//
// It fails where the throughput is more than 3% lower. With --browser the clients are pages in Chromium, which need
// processors of their own; else they read and parse the feed as the page does. With --tiny the model is one whose
// steps take a millisecond or two, so that there are hundreds a second. The server's processor time is counted too:
// unlike the throughput it does not change with what else the machine does.
import { parseArgs } from "node:util";
import { defaultModelPath } from "../ffi/native.ts";
import { openBrowser } from "../test/support/browser.ts";
import { makeHome, startMlxServe } from "../test/support/serve-process.ts";

const { values } = parseArgs({
  options: {
    rounds: { type: "string", default: "5" },
    seconds: { type: "string", default: "8" },
    model: { type: "string" },
    tiny: { type: "boolean", default: false },
    browser: { type: "boolean", default: false },
  },
});
const [STREAMS, CONSOLES, MOST] = [64, 3, 0.03];
const POLL_MS = 5;

type Measured = { tokensPerSecond: number; cpuMsPerToken: number };

const home = makeHome({ recites: "abcdefg \n" });
const model = values.tiny ? home.model : (values.model ?? defaultModelPath());
const server = startMlxServe(
  ["serve", "--model", model, "--port", "0", "--max-batch-size", String(STREAMS)],
  home.env,
);
const browser = values.browser ? await openBrowser() : undefined;
try {
  const [, url] = await server.says(/(http:\/\/[\d.]+:\d+)/);
  await ready(url!);
  await compare(url!);
} finally {
  await browser?.close();
  server.kill("SIGTERM");
  await server.ended;
  home.remove();
}

async function ready(url: string): Promise<void> {
  while (!(await fetch(`${url}/health`).catch(() => undefined))?.ok) await Bun.sleep(50);
}

async function compare(url: string): Promise<void> {
  const leaving = new AbortController();
  const streams = Array.from({ length: STREAMS }, (_, i) => stream(url, i, leaving.signal));
  // All are admitted, and their kernels and caches warm.
  await Bun.sleep(3000);
  const pairs: Pair[] = [];
  for (let round = 0; round < Number(values.rounds); round++) {
    // Each first in turn: what the machine does besides changes slowly.
    const isFirst = round % 2 === 0;
    const before = isFirst ? await measure(url) : undefined;
    const close = await openConsoles(url);
    const some = await measure(url);
    await close();
    pairs.push({ none: before ?? (await measure(url)), some });
  }
  leaving.abort();
  await Promise.all(streams);
  report(pairs);
}

/** Measured one after the other, without consoles and with them. */
type Pair = { none: Measured; some: Measured };

function report(pairs: readonly Pair[]): void {
  const change = (of: (each: Measured) => number) =>
    median(pairs.map(({ none, some }) => of(some) / of(none))) - 1;
  const throughput = change((each) => each.tokensPerSecond);
  const cpu = change((each) => each.cpuMsPerToken);
  const percent = (part: number) => `${part > 0 ? "+" : ""}${(100 * part).toFixed(1)}%`;
  const consoles = values.browser ? "pages in Chromium" : "readers of the feed";
  console.log(`${STREAMS} streams, medians of ${pairs.length} pairs of ${values.seconds} s`);
  console.log(`no console: ${line(pairs.map(({ none }) => none))}`);
  console.log(`${CONSOLES} ${consoles}: ${line(pairs.map(({ some }) => some))}`);
  console.log(`throughput ${percent(throughput)}, processor time of the server ${percent(cpu)}`);
  if (throughput < -MOST) throw new Error(`the throughput is more than ${100 * MOST}% lower`);
}

function line(all: readonly Measured[]): string {
  const speed = `${median(all.map((each) => each.tokensPerSecond)).toFixed(1)} tokens/s`;
  const cpu = median(all.map((each) => each.cpuMsPerToken)).toFixed(3);
  return `${speed}, ${cpu} ms of the processors a token`;
}

/** One answer after the other. */
async function stream(url: string, i: number, signal: AbortSignal): Promise<void> {
  for (let turn = 0; !signal.aborted; turn++) {
    const body = {
      prompt: `Client ${i}, turn ${turn}: tell me about the sea.`,
      // Prompts are rare, and never all at once.
      max_tokens: 1000 + ((37 * i) % 1000),
      ignore_eos: true,
      stream: true,
    };
    const headers = { "content-type": "application/json" };
    const init = { method: "POST", headers, body: JSON.stringify(body), signal };
    await fetch(`${url}/v1/completions`, init)
      .then((response) => response.arrayBuffer())
      .catch((error: unknown) => {
        if (!signal.aborted) throw error;
      });
  }
}

/** From the end of a step to the end of a later one. */
async function measure(url: string): Promise<Measured> {
  const first = await stepEnd(url);
  await Bun.sleep(Number(values.seconds) * 1000);
  const last = await stepEnd(url);
  const count = last.tokens - first.tokens;
  return {
    tokensPerSecond: (1000 * count) / (last.atMs - first.atMs),
    cpuMsPerToken: (last.cpuMs - first.cpuMs) / count,
  };
}

async function stepEnd(url: string): Promise<{ tokens: number; atMs: number; cpuMs: number }> {
  const before = await generated(url);
  for (;;) {
    const tokens = await generated(url);
    if (tokens > before) return { tokens, atMs: performance.now(), cpuMs: cpuMsOf(server.pid) };
    await Bun.sleep(POLL_MS);
  }
}

async function generated(url: string): Promise<number> {
  const text = await (await fetch(`${url}/metrics`)).text();
  const lines = text.matchAll(/^mlx_serve_generated_tokens_total\{.*\} (\d+)$/gm);
  return Array.from(lines, ([, count]) => Number(count)).reduce((sum, count) => sum + count, 0);
}

/** Of all its threads; Linux counts in hundredths of a second. */
function cpuMsOf(pid: number): number {
  const { stdout } = Bun.spawnSync(["cat", `/proc/${pid}/stat`]);
  const fields = stdout
    .toString()
    .replace(/^.*\) /, "")
    .split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

/** Returns what closes them. */
async function openConsoles(url: string): Promise<() => Promise<void>> {
  const closers = await Promise.all(
    Array.from({ length: CONSOLES }, () => (browser ? openPage(url) : openReader(url))),
  );
  return async () => {
    for (const close of closers) await close();
  };
}

async function openPage(url: string): Promise<() => Promise<void>> {
  const context = await browser!.newContext();
  const page = await context.newPage();
  await page.goto(`${url}/#engine`);
  await page.getByText("tokens/s").first().waitFor();
  return () => context.close();
}

async function openReader(url: string): Promise<() => Promise<void>> {
  const controller = new AbortController();
  const response = await fetch(`${url}/engine/events`, { signal: controller.signal });
  let rest = "";
  const read = async () => {
    for await (const text of response.body!.pipeThrough(new TextDecoderStream())) {
      const parts = (rest + text).split("\n\n");
      rest = parts.pop()!;
      for (const part of parts) if (part.includes("data: ")) JSON.parse(part.split("data: ")[1]!);
    }
  };
  const reading = read().catch(() => {});
  return async () => {
    controller.abort();
    await reading;
  };
}

function median(numbers: readonly number[]): number {
  return numbers.toSorted((a, b) => a - b)[numbers.length >> 1]!;
}
