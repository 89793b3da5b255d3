// A process of the self-test: one part of it, from one of its checks on.
import { Worker } from "node:worker_threads";
import { engineSetup } from "../../ffi/native.ts";
import { selfTestEntry } from "../worker-entry.ts";
import { type Job, type Part, tell } from "./lines.ts";

const runs: Record<Part, (job: Job) => Promise<void>> = {
  device: runOnThread,
  engine: async () => tell({ kind: "plan", checks: [] }),
  speed: async () => tell({ kind: "plan", checks: [] }),
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
