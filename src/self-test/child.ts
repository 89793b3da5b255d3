// A child process of the self-test: runs the checks of one part, starting with a given check.
import { Worker } from "node:worker_threads";
import { engineSetup } from "../../ffi/native.ts";
import { EngineClient } from "../engine/client.ts";
import { selfTestEntry } from "../worker-entry.ts";
import { worstOf } from "./check.ts";
import { modelChecks } from "./engine-checks.ts";
import { measureEngine } from "./engine-speed.ts";
import { type Job, type Outcome, type Part, perform, tell } from "./lines.ts";
import { samplingChecks } from "./sampling-checks.ts";

const runs: Record<Part, (job: Job) => Promise<void>> = {
  device: runOnThread,
  engine: (job) => runThroughEngine(job, compared()),
  speed: runOnThread,
  "engine's speed": (job) => runThroughEngine(job, [measured]),
};

export async function runJob(job: Job): Promise<void> {
  await runs[job.part](job);
}

async function runOnThread(job: Job): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const worker = new Worker(selfTestEntry, { workerData: { setup: engineSetup(), job } });
  worker.on("error", reject);
  worker.on("exit", () => resolve());
  await promise;
}

type EngineCheck = { name: string; run: (engine: EngineClient) => Promise<Outcome> };

const compared = (): EngineCheck[] =>
  [...modelChecks(), ...samplingChecks()].map(({ name, run }) => ({
    name,
    run: async (engine) => worstOf(await run(engine)),
  }));

const measured: EngineCheck = {
  name: "speed: the engine",
  run: async (engine) => ({ figures: await measureEngine(engine) }),
};

async function runThroughEngine(job: Job, all: readonly EngineCheck[]): Promise<void> {
  const checks = all.filter(({ name }) => name.includes(job.only));
  tell({ kind: "plan", checks: checks.map(({ name }) => name) });
  if (job.from >= checks.length) return;
  const engine = await EngineClient.start(engineSetup());
  await perform(checks, job, (check) => check.run(engine));
  await engine.stop();
}
