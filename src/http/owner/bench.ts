// POST /bench: the server benchmarks itself with requests from a separate thread, one benchmark at a time: concurrent
// ones would distort each other.
import { Worker } from "node:worker_threads";
import type { Context } from "hono";
import { type BenchEvent, BenchRequest } from "../../api/owner/bench.ts";
import type { BenchJob, FromBench } from "../../bench/thread.ts";
import { EventStream } from "../../engine/stream.ts";
import { benchEntry } from "../../worker-entry.ts";
import { presentedKey } from "../frame/auth.ts";
import { openAiEvents } from "../frame/dialect.ts";
import type { HttpEnv } from "../frame/env.ts";
import { ApiError, apiErrorOf } from "../frame/errors.ts";
import { type EventSource, streamResponse } from "../frame/event-stream.ts";
import { readRequest } from "../frame/json-body.ts";
import type { BodyReader, Runtime } from "../frame/serving.ts";

/** Concurrency levels of a sweep if the request has none. */
const preset = [1, 2, 4, 8, 16];

export function runBench(
  serving: BodyReader & Runtime & { url: string | undefined; heartbeatMs: number },
) {
  let isRunning = false;
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving, BenchRequest);
    // Throws a 404 error for an unknown model, before the benchmark starts.
    serving.models.sourceOf(request.model);
    if (isRunning) {
      throw new ApiError(409, "Another benchmark is running.", { code: "bench_running" });
    }
    isRunning = true;
    const { mode, requests, repeat, levels = preset, max_tokens: maxTokens, model } = request;
    const job = { mode, requests, repeat, levels, maxTokens, model };
    const thread = benchThread({ ...job, url: serving.url!, apiKey: presentedKey(c) });
    const { eventText, streamType: mediaType } = openAiEvents;
    const source: EventSource = {
      async next() {
        const events = await thread.events.read();
        return events.length === 0 ? undefined : events.map(eventText).join("");
      },
      heartbeat: () => ": still here\n\n",
      failure: (error) => eventText({ type: "error", ...apiErrorOf(error).body }),
      close() {
        isRunning = false;
        thread.end();
      },
    };
    return await streamResponse(source, { mediaType, heartbeatMs: serving.heartbeatMs });
  };
}

function benchThread(job: BenchJob): { events: EventStream<BenchEvent>; end(): void } {
  const worker = new Worker(benchEntry, { workerData: job });
  const end = () => void worker.terminate();
  const events = new EventStream<BenchEvent>(end);
  worker.on("message", (message: FromBench) => {
    if (message.kind === "failed") {
      events.end(new ApiError(502, `The benchmark has failed: ${message.message}`));
      return;
    }
    const { kind: type, ...rest } = message;
    events.push({ type, ...rest } as BenchEvent);
    if (type === "results") events.end();
  });
  worker.on("error", (error) => events.end(error as Error));
  worker.on("exit", () => events.end(new ApiError(500, "The benchmark has ended early.")));
  return { events, end };
}
