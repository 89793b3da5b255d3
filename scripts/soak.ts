// Runs a server under random load: clients send requests, stream, disconnect, overload it and send invalid input, all
// concurrently, and some only attack it.
//
//   npm run -s soak -- --minutes 10 --clients 24 --attackers 2 --seed 1
//
// Prints the visits and the server's gauges every minute. Fails if an answer differs from the one that the same request
// got alone, if the server breaks, or if requests, blocks or memory are left at the end.
import { makeRandom } from "../test/support/random.ts";
import { attacks } from "./attack/attacks.ts";
import { keys, startGuardedServer } from "./attack/guarded-server.ts";
import { Figures } from "./attack/metrics.ts";
import { readFlags } from "./flags.ts";
import { makeVisits, type Outcome } from "./soak/visits.ts";

const { minutes, clients, attackers, seed } = readFlags({
  minutes: 10,
  clients: 24,
  attackers: 2,
  seed: 1,
});

/** Maximum growth of the process after the first quarter. */
const MOST_GROWTH = 64 * 2 ** 20;

// A batch and a pool too small for all clients, so that some wait, are preempted or refused.
const server = await startGuardedServer([
  "--max-batch-size=12",
  "--max-queue=8",
  "--kv-memory=96MiB",
  "--log-format=json",
]);
const { url, port } = server;
const faults: string[] = [];
const counts = new Map<Outcome, number>();
const count = (outcome: Outcome) => counts.set(outcome, (counts.get(outcome) ?? 0) + 1);

const visits = await makeVisits(url, keys.bystander);
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

async function attacker(number: number): Promise<void> {
  const random = makeRandom(seed * 1000 + 500 + number);
  while (performance.now() < end && faults.length < 10) {
    const attack = attacks[random.below(attacks.length)]!;
    try {
      await attack.run({ port, key: keys.attacker }, random);
      count("attacked");
    } catch (error) {
      faults.push(`attacker ${number}, ${attack.name}: ${(error as Error).message}`);
    }
  }
}

const read = () => Figures.read(url, keys.owner);

const sizes: number[] = [];
const started = performance.now();
async function report(): Promise<void> {
  const figures = await read();
  sizes.push(server.memory());
  const parts = [
    `${((performance.now() - started) / 60_000).toFixed(1)} min`,
    [...counts].map(([outcome, times]) => `${times} ${outcome}`).join(", "),
    `running ${figures.total("requests_running")}`,
    `waiting ${figures.total("requests_waiting")}`,
    `blocks held ${figures.total("kv_blocks", "held")}`,
    `preempted ${figures.total("preemptions_total")}`,
    `${(sizes.at(-1)! / 2 ** 20).toFixed(0)} MiB`,
  ];
  console.log(parts.join("; "));
}

const timer = setInterval(
  () => report().catch((error) => faults.push(`metrics: ${error}`)),
  60_000,
);
await Promise.all([
  ...Array.from({ length: clients }, (_, number) => client(number)),
  ...Array.from({ length: attackers }, (_, number) => attacker(number)),
]);
clearInterval(timer);

// Aborted requests are released one step later.
await Bun.sleep(2000);
await report();
faults.push(...(await read()).leftovers());
const growth = sizes.at(-1)! - sizes[Math.floor(sizes.length / 4)]!;
if (growth > MOST_GROWTH) faults.push(`the process has grown by ${growth} bytes`);

const { exitCode, stderr } = await server.stop();
if (exitCode !== 0) faults.push(`it ended with ${exitCode}`);
const ERROR = 50;
for (const line of stderr.split("\n")) {
  if (line && JSON.parse(line).level >= ERROR) faults.push(`logged: ${line}`);
}
for (const fault of faults) console.error(fault);
if (faults.length > 0) process.exit(1);
console.log("passed");
