// Runs a benchmark on a separate thread, so that the server it measures does not wait for its client.
import { parentPort, workerData } from "node:worker_threads";
import { type ModeName, measure, modes } from "./modes.ts";
import { pictureOf } from "./picture.ts";
import { builtInPrompts } from "./prompts.ts";
import type { Result } from "./results.ts";
import { openServerTarget } from "./server-target.ts";

export type BenchJob = {
  url: string;
  apiKey: string | undefined;
  model: string;
  mode: ModeName;
  requests: number;
  maxTokens: number;
  repeat: number;
  /** Concurrency levels of a sweep. */
  levels: readonly number[];
};

export type FromBench =
  | { kind: "progress"; answered: number; total: number }
  | { kind: "results"; results: Result[]; verdict: string; picture: string }
  | { kind: "failed"; message: string };

const tell = (message: FromBench) => parentPort!.postMessage(message);

async function run(job: BenchJob): Promise<FromBench> {
  const { url, apiKey, model, requests, levels, repeat } = job;
  const mode = modes[job.mode];
  const target = await openServerTarget({ url, apiKey, model, chat: false });
  const warmup = 1;
  const total = mode.count({ requests, levels }) * (warmup + repeat);
  let answered = 0;
  tell({ kind: "progress", answered, total });
  const onAnswer = () => tell({ kind: "progress", answered: ++answered, total });
  const bench = { ...job, target, prompts: builtInPrompts, onAnswer };
  const results = await measure(mode, bench, { warmup, repeat });
  const picture = pictureOf(mode, results, "mlx-serve", model);
  return { kind: "results", results, verdict: mode.verdict(results), picture };
}

run(workerData as BenchJob).then(tell, (error: Error) =>
  tell({ kind: "failed", message: error.message }),
);
