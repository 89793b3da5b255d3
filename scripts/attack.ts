// Attacks a server in another process, one attack after the other, while a bystander sends small requests:
//
//   npm run -s attack
//   npm run -s attack -- --short --only "grammars"
//
// Fails if the server misbehaves, still holds requests or memory at the end, grows by more than 200 MB, or delays the
// bystander to more than twice its idle latency plus one step (two with a schema, whose first mask may miss a step).
// --short skips long attacks, checks that depend on the machine's speed, and the growth, which can be measured only
// once the whole KV pool has been written.
import { linesOf } from "../src/lines.ts";
import { makeRandom } from "../test/support/random.ts";
import { type Attack, completions, post } from "./attack/attack.ts";
import { attacks } from "./attack/attacks.ts";
import type { Kind, Sample } from "./attack/bystander.ts";
import { keys, startGuardedServer } from "./attack/guarded-server.ts";
import { Figures } from "./attack/metrics.ts";
import { readFlags } from "./flags.ts";

const { short, only, seed } = readFlags({ short: false, only: "", seed: 1 });

const MOST_GROWTH = 200e6;
/** The bystander's answers per kind while the server is otherwise idle. */
const IDLE = short ? 5 : 40;
/** Time for the server to release everything. */
const SETTLE_MS = 10_000;
/** Minimum answers for a meaningful latency. */
const FEWEST = 3;

const server = await startGuardedServer(["--log-format=pretty"]);
const { url, port } = server;
const target = { port, key: keys.attacker };
const random = makeRandom(seed);
const faults: string[] = [];

const read = () => Figures.read(url, keys.owner);

// Memory of the KV pool is the server's own only once it was written to. The block that a prompt's end does not
// fill is free again.
while (!short && (await read()).total("kv_blocks", 'state="free"') > 1) {
  const prompt = Array.from({ length: 3000 }, () => random.below(10_000));
  const body = { prompt, max_tokens: 1 };
  await (await post({ port, key: keys.owner }, completions, body)).arrayBuffer();
}

const samples: Sample[] = [];
const bystander = Bun.spawn(
  [process.execPath, `${import.meta.dir}/attack/bystander.ts`, url, keys.bystander],
  {
    stdout: "pipe",
    stderr: "inherit",
  },
);
process.on("exit", () => bystander.kill());
const watching = (async () => {
  for await (const line of linesOf(bystander.stdout)) samples.push(JSON.parse(line));
})();

/** Sorted latencies of the bystander's requests of one kind between two times. */
function waits(kind: Kind, fromMs: number, toMs: number): number[] {
  return samples
    .filter((each) => each.kind === kind && each.atMs + each.ms >= fromMs && each.atMs <= toMs)
    .map(({ ms }) => ms)
    .sort((a, b) => a - b);
}

const median = (sorted: readonly number[]) => sorted[Math.floor(sorted.length / 2)]!;
const kinds: Kind[] = ["health", "completion", "schema"];

async function settled(name: string): Promise<void> {
  const end = performance.now() + SETTLE_MS;
  for (;;) {
    // One request may be the bystander's.
    const left = (await read()).total("requests_in_progress");
    if (left <= 1) return;
    if (performance.now() > end) {
      faults.push(`${name}: ${left} requests are still in progress`);
      return;
    }
    await Bun.sleep(50);
  }
}

const countOf = (kind: Kind) => samples.filter((each) => each.kind === kind).length;
while (kinds.some((kind) => countOf(kind) < IDLE)) {
  if (bystander.exitCode !== null) throw new Error("the bystander has ended");
  await Bun.sleep(20);
}
// Excludes the first answers of a cold server.
const warmMs = samples[kinds.length * 2]!.atMs;
const idle = new Map(kinds.map((kind) => [kind, waits(kind, warmMs, Date.now())]));
const before = server.memory();
console.log(
  `idle: ${kinds.map((kind) => `${kind} ${median(idle.get(kind)!).toFixed(0)} ms`).join(", ")}; ${(before / 1e6).toFixed(0)} MB`,
);

async function run(attack: Attack): Promise<void> {
  const [fromMs, figures] = [Date.now(), await read()];
  try {
    await attack.run(target, random);
  } catch (error) {
    faults.push(`${attack.name}: ${(error as Error).message}`);
  }
  const toMs = Date.now();
  await settled(attack.name);
  const stepMs = (await read()).highestBucket("step_seconds", figures) * 1000;
  const parts = kinds.map((kind) => {
    const during = waits(kind, fromMs, toMs);
    if (during.length < FEWEST) return `${kind} -`;
    const steps = kind === "schema" ? 2 : 1;
    const [middle, most] = [median(during), 2 * median(idle.get(kind)!) + steps * stepMs];
    if (middle > most && !short) {
      faults.push(`${attack.name}: ${kind} took ${middle.toFixed(0)} ms, not ${most.toFixed(0)}`);
    }
    return `${kind} ${middle.toFixed(0)} ms (at most ${during.at(-1)!.toFixed(0)})`;
  });
  const seconds = ((toMs - fromMs) / 1000).toFixed(1);
  const size = (server.memory() / 1e6).toFixed(0);
  console.log(
    `${attack.name}: ${seconds} s; ${parts.join(", ")}; steps to ${stepMs} ms; ${size} MB`,
  );
}

for (const attack of attacks) {
  if (short && attack.isLong) continue;
  if (attack.name.includes(only)) await run(attack);
}

bystander.kill();
await watching;
await Bun.sleep(2000);
faults.push(...(await read()).leftovers());
const growth = server.memory() - before;
console.log(`the server has grown by ${(growth / 1e6).toFixed(0)} MB`);
if (growth > MOST_GROWTH && !short) faults.push("the server has grown too much");
const unanswered = samples.filter(({ status }) => status !== 200);
if (unanswered.length > 0) {
  const statuses = [...new Set(unanswered.map(({ status }) => status))];
  faults.push(`${unanswered.length} of the bystander's requests got ${statuses.join(", ")}`);
}

const { exitCode, stderr } = await server.stop();
if (exitCode !== 0) faults.push(`the server ended with ${exitCode}`);
const lines = stderr.split("\n");
// Lines before that are the output of its start.
for (const line of lines.slice(lines.findIndex((each) => each.startsWith("[")))) {
  const isOurs = line === "" || /^\[\d\d:\d\d:\d\d\] (DEBUG|INFO|WARN): [\x20-\x7e]*$/.test(line);
  if (!isOurs) faults.push(`in the log: ${JSON.stringify(line.slice(0, 200))}`);
}
for (const fault of faults.slice(0, 40)) console.error(fault);
if (faults.length > 0) process.exit(1);
console.log("nothing got through");
