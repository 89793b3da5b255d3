// A process of the self-test: one part of it, from one of its checks on.
import { Worker } from "node:worker_threads";
import { engineSetup } from "../../ffi/native.ts";
import { EngineClient } from "../engine/client.ts";
import { selfTestEntry } from "../worker-entry.ts";
import { worstOf } from "./check.ts";
import { modelChecks } from "./engine-checks.ts";
import { measureEngine } from "./engine-speed.ts";
import { type Job, type Part, perform, tell } from "./lines.ts";
import { samplingChecks } from "./sampling-checks.ts";

const runs: Record<Part, (job: Job) => Promise<void>> = {
  device: runOnThread,
  engine: runThroughEngine,
  speed: runOnThread,
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

async function runThroughEngine({ from, only }: Job): Promise<void> {
  const compared = [...modelChecks(), ...samplingChecks()].map(({ name, run }) => ({
    name,
    run: async (engine: EngineClient) => worstOf(await run(engine)),
  }));
  const measured = {
    name: "speed: the engine",
    run: async (engine: EngineClient) => ({ figures: await measureEngine(engine) }),
  };
  const checks = [...compared, measured].filter(({ name }) => name.includes(only));
  tell({ kind: "plan", checks: checks.map(({ name }) => name) });
  if (from >= checks.length) return;
  const engine = await EngineClient.start(engineSetup());
  await perform(checks, from, (check) => check.run(engine));
  await engine.stop();
}
