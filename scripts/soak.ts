// A server of its own process under all that clients do, for as long as one likes: they ask, stream, go away,
// ask too much and ask nonsense, all at once and by chance.
//
//   npm run -s soak -- --minutes 10 --clients 24 --seed 1
//
// Each minute says what was done and what the server holds. It fails where an answer is not what the same
// request got alone, where the server breaks, and where in the end requests, blocks or memory are left over.
import { parseArgs } from "node:util";
import { makeRandom } from "../test/support/random.ts";
import { startMlxServe } from "../test/support/serve-process.ts";
import { makeVisits, type Outcome } from "./soak/visits.ts";

const { values } = parseArgs({
  options: {
    minutes: { type: "string", default: "10" },
    clients: { type: "string", default: "24" },
    seed: { type: "string", default: "1" },
  },
});
const [minutes, clients, seed] = [values.minutes, values.clients, values.seed].map(Number) as [
  number,
  number,
  number,
];

/** Growth of the process that is not put down to chance, after its first quarter. */
const MOST_GROWTH = 64 * 2 ** 20;

// A batch and a pool that are too small for the crowd: some wait, some are preempted, some are refused.
const flags = ["--port=0", "--max-batch-size=12", "--max-queue=8", "--kv-memory=96MiB"];
const server = startMlxServe(["serve", ...flags, "--log-format=json"], process.env);
const [, url] = await server.says(/"url":"([^"]+)"/);
const faults: string[] = [];
const counts = new Map<Outcome, number>();
const count = (outcome: Outcome) => counts.set(outcome, (counts.get(outcome) ?? 0) + 1);

const visits = await makeVisits(url!);
const end = performance.now() + minutes * 60_000;

async function client(number: number): Promise<void> {
  const random = makeRandom(seed * 1000 + number);
  while (performance.now() < end && faults.length < 10) {
    const visit = visits[random.below(visits.length)]!;
    try {
      const outcome = await visit.run(random);
      count(outcome);
      if (outcome === "refused for now") await Bun.sleep(random.below(1000));
    } catch (error) {
      faults.push(`client ${number}, ${visit.name}: ${(error as Error).message}`);
    }
  }
}

async function gauges(): Promise<Map<string, number>> {
  const text = await (await fetch(`${url}/metrics`)).text();
  const lines = text.matchAll(/^(mlx_serve_\w+)(?:\{(.*)\})? (\S+)$/gm);
  return new Map(
    [...lines].map(([, name, labels = "", value]) => [`${name} ${labels}`, Number(value)]),
  );
}

/** Of all labels. */
const total = (all: Map<string, number>, name: string, label = "") =>
  [...all].reduce((sum, [key, value]) => {
    const isIt = key.startsWith(`${name} `) && key.includes(label);
    return isIt ? sum + value : sum;
  }, 0);

function memory(): number {
  const ps = Bun.spawnSync(["ps", "-o", "rss=", "-p", String(server.pid)]);
  return Number(ps.stdout.toString()) * 1024;
}

const sizes: number[] = [];
const started = performance.now();
async function report(): Promise<void> {
  const all = await gauges();
  sizes.push(memory());
  const parts = [
    `${((performance.now() - started) / 60_000).toFixed(1)} min`,
    [...counts].map(([outcome, times]) => `${times} ${outcome}`).join(", "),
    `running ${total(all, "mlx_serve_requests_running")}`,
    `waiting ${total(all, "mlx_serve_requests_waiting")}`,
    `blocks held ${total(all, "mlx_serve_kv_blocks", "held")}`,
    `put back ${total(all, "mlx_serve_preemptions_total")}`,
    `${(sizes.at(-1)! / 2 ** 20).toFixed(0)} MiB`,
  ];
  console.log(parts.join("; "));
}

const timer = setInterval(
  () => report().catch((error) => faults.push(`metrics: ${error}`)),
  60_000,
);
await Promise.all(Array.from({ length: clients }, (_, number) => client(number)));
clearInterval(timer);

// Aborted requests are released one step later.
await Bun.sleep(2000);
await report();
const left = await gauges();
for (const name of [
  "requests_running",
  "requests_waiting",
  "requests_in_progress",
  "http_requests_admitted",
]) {
  const held = total(left, `mlx_serve_${name}`);
  if (held !== 0) faults.push(`${name} is ${held} in the end`);
}
const held = total(left, "mlx_serve_kv_blocks", "held");
if (held !== 0) faults.push(`${held} blocks are held in the end`);
const growth = sizes.at(-1)! - sizes[Math.floor(sizes.length / 4)]!;
if (growth > MOST_GROWTH) faults.push(`the process has grown by ${growth} bytes`);

server.kill("SIGTERM");
const { exitCode, stderr } = await server.ended;
if (exitCode !== 0) faults.push(`it ended with ${exitCode}`);
const ERROR = 50;
for (const line of stderr.split("\n")) {
  if (line && JSON.parse(line).level >= ERROR) faults.push(`logged: ${line}`);
}
for (const fault of faults) console.error(fault);
if (faults.length > 0) process.exit(1);
console.log("nothing was left over");
