// Measures the cost of open consoles: the throughput of 64 streams with three clients of the engine's feed and
// without, interleaved, next to its normal variation. `npm run -s bench:console [-- --rounds 40 --seconds 3 --model
// <path> --tiny --browser]`
//
// Fails if the throughput is more than 3% lower. With --browser, the clients are pages in Chromium, and on Linux the
// server gets half of the cores and everything else the other half; otherwise, clients read and parse the feed like
// the page. With --tiny, the model takes a millisecond or two per step. The server's CPU time is measured too, since
// it depends less than throughput on other load.
import { availableParallelism } from "node:os";
import { defaultModelPath } from "../../ffi/native.ts";
import { eventData } from "../../src/lines.ts";
import { makeHome, startMlxServe, urlOf } from "../../test/support/serve-process.ts";
import { readFlags } from "../flags.ts";
import { changes, median, told } from "./in-turns.ts";

const { rounds, seconds, tiny, ...given } = readFlags({
  rounds: 40,
  seconds: 3,
  model: defaultModelPath(),
  tiny: false,
  browser: false,
});
const [STREAMS, CONSOLES, MOST] = [64, 3, 0.03];
const POLL_MS = 5;
/** Tokens of the longest answer of a stream. */
const BLOCKS = 65;

type Measured = { tokensPerSecond: number; cpuMsPerToken: number };

// A single thread by default: leaves one of two cores to the streams' clients.
const { MLX_SERVE_BACKEND, MLX_SERVE_THREADS = "1" } = process.env;
const ofMachine = { MLX_SERVE_THREADS, ...(MLX_SERVE_BACKEND && { MLX_SERVE_BACKEND }) };

const home = makeHome({ recites: "abcdefg \n" });
const model = tiny ? home.model : given.model;
const server = startMlxServe(
  [
    ...["serve", "--model", model, "--port", "0", "--max-batch-size", String(STREAMS)],
    // Large enough that none is preempted.
    ...["--block-pool-size", String(STREAMS * BLOCKS)],
  ],
  { ...home.env, ...ofMachine },
);
if (given.browser) divideProcessors(server.pid);
const browser = given.browser
  ? await (await import("../../test/support/browser.ts")).openBrowser()
  : undefined;
try {
  await compare(await urlOf(server));
} finally {
  await browser?.close();
  server.kill("SIGTERM");
  await server.ended;
  home.remove();
}

/** Child processes inherit this half of the cores. */
function divideProcessors(server: number): void {
  if (process.platform !== "linux") return;
  const half = Math.ceil(availableParallelism() / 2);
  const halves = { [server]: `0-${half - 1}`, [process.pid]: `${half}-${2 * half - 1}` };
  for (const [pid, processors] of Object.entries(halves)) {
    const { exitCode, stderr } = Bun.spawnSync(["taskset", "-acp", processors, pid]);
    if (exitCode !== 0) throw new Error(`taskset: ${stderr}`);
  }
}

async function compare(url: string): Promise<void> {
  const leaving = new AbortController();
  const streams = Array.from({ length: STREAMS }, (_, i) => stream(url, i, leaving.signal));
  // Waits until all are admitted and warm.
  await Bun.sleep(5000);
  const windows = [await measure(url)];
  for (let round = 0; round < rounds; round++) {
    const close = await openConsoles(url);
    windows.push(await measure(url));
    await close();
    windows.push(await measure(url));
  }
  leaving.abort();
  await Promise.all(streams);
  report(windows);
}

/** Every second window has consoles. */
function report(windows: readonly Measured[]): void {
  const [none, some] = [0, 1].map((odd) => windows.filter((_, i) => i % 2 === odd)) as [
    Measured[],
    Measured[],
  ];
  const consoles = given.browser ? "pages in Chromium" : "readers of the feed";
  const speed = (each: Measured) => each.tokensPerSecond;
  console.log(
    `${STREAMS} streams, windows of ${seconds} s, ${some.length} with consoles between ${none.length} without`,
  );
  console.log(`no console: ${line(none)}`);
  console.log(`${CONSOLES} ${consoles}: ${line(some)}`);
  const throughput = changes(windows.map(speed));
  console.log(`throughput: ${told(throughput)}`);
  console.log(
    `throughput of windows without, each beside its neighbours without: ${told(changes(none.map(speed)))}`,
  );
  console.log(
    `processor time of the server: ${told(changes(windows.map((each) => each.cpuMsPerToken)))}`,
  );
  if (median(throughput) < -MOST)
    throw new Error(`the throughput is more than ${100 * MOST}% lower`);
}

function line(all: readonly Measured[]): string {
  const speed = `${median(all.map((each) => each.tokensPerSecond)).toFixed(1)} tokens/s`;
  const cpu = median(all.map((each) => each.cpuMsPerToken)).toFixed(3);
  return `${speed}, ${cpu} ms of the processors a token`;
}

/** Requests one answer after the other. */
async function stream(url: string, i: number, signal: AbortSignal): Promise<void> {
  for (let turn = 0; !signal.aborted; turn++) {
    const body = {
      prompt: `Client ${i}, turn ${turn}: tell me about the sea.`,
      // No prefill while SmolLM2 is measured; with the tiny model it is rare and never simultaneous.
      max_tokens: 1500 + ((37 * i) % 500),
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

/** Measured from the end of one step to the end of another: each step has a token per stream. */
async function measure(url: string): Promise<Measured> {
  const first = await stepEnd(url);
  await Bun.sleep(seconds * 1000);
  const last = await stepEnd(url);
  const tokens = STREAMS * (last.steps - first.steps);
  return {
    tokensPerSecond: (1000 * tokens) / (last.atMs - first.atMs),
    cpuMsPerToken: (last.cpuMs - first.cpuMs) / tokens,
  };
}

async function stepEnd(url: string): Promise<{ steps: number; atMs: number; cpuMs: number }> {
  const before = await stepsOf(url);
  for (;;) {
    const steps = await stepsOf(url);
    if (steps > before) return { steps, atMs: performance.now(), cpuMs: cpuMsOf(server.pid) };
    await Bun.sleep(POLL_MS);
  }
}

async function stepsOf(url: string): Promise<number> {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Number(/^mlx_serve_step_seconds_count\{.*\} (\d+)$/m.exec(text)?.[1] ?? 0);
}

/** CPU time of all threads; Linux counts in units of 10 ms. */
function cpuMsOf(pid: number): number {
  const { stdout } = Bun.spawnSync(["cat", `/proc/${pid}/stat`]);
  const fields = stdout
    .toString()
    .replace(/^.*\) /, "")
    .split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

/** Returns a function that closes them. */
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
  const tiles = page.locator(".tiles");
  await tiles.getByText(`${STREAMS} running`).waitFor();
  const atFirst = await tiles.innerText();
  return async () => {
    if ((await tiles.innerText()) === atFirst) throw new Error("a page does not update");
    await context.close();
  };
}

async function openReader(url: string): Promise<() => Promise<void>> {
  const controller = new AbortController();
  const response = await fetch(`${url}/engine/events`, { signal: controller.signal });
  const read = async () => {
    for await (const data of eventData(response.body!)) JSON.parse(data);
  };
  const reading = read().catch(() => {});
  return async () => {
    controller.abort();
    await reading;
  };
}
