// The engine Worker: the only thread that touches MLX.
import { workerData } from "node:worker_threads";
import { openBlas } from "../../ffi/blas.ts";
import { traceReport } from "../../ffi/trace.ts";
import type { Mailbox } from "../engine/mailbox.ts";
import type { FromWorker, ToWorker, WorkerSetup } from "../engine/protocol.ts";
import { Matchers } from "../grammar/matchers.ts";
import { openMlx } from "../mlx/runtime.ts";
import { inspect } from "./inspect.ts";
import { loop } from "./loop.ts";
import { Models } from "./models.ts";

const { mailbox, setup } = workerData as { mailbox: Mailbox; setup: WorkerSetup };
const reply = (message: FromWorker) => mailbox.port.postMessage(message);

const { library, device, trace } = setup;
const blas = openBlas(library);
const runtime = openMlx(library, device ? { device, trace } : { trace });
const models = new Models(runtime.backend);
reply({ kind: "ready" });
loop(mailbox, models, handle);
models.free();
runtime.stream.synchronize();
if (trace) console.table(traceReport().slice(0, 20));
reply({ kind: "stopped" });
mailbox.port.close();

function handle(message: ToWorker): "go on" | "stop" {
  switch (message.kind) {
    case "inspect":
      answer(message.id, () => inspect(runtime, blas, message.measure));
      break;
    case "load": {
      const { id, model, path, options } = message;
      const onProgress = (loadedBytes: number, totalBytes: number) =>
        reply({ kind: "progress", model, loadedBytes, totalBytes });
      answer(id, () => models.load(model, path, options, onProgress));
      break;
    }
    case "unload":
      answer(message.id, () => models.unload(message.model));
      break;
    case "submit": {
      const engine = models.get(message.model);
      if (!engine) {
        reply({ kind: "failed", id: message.id, message: `${message.model} is not loaded` });
        break;
      }
      if (message.request.grammar && !models.matchers) {
        reply({ kind: "failed", id: message.id, message: "nobody follows grammars" });
        break;
      }
      const reason = engine.submit(message.id, message.request);
      if (reason) reply({ kind: "refused", id: message.id, reason });
      break;
    }
    case "abort":
      for (const engine of models) {
        if (!engine.has(message.id)) continue;
        reply({ kind: "step", events: engine.abort(message.id, message.index) });
      }
      break;
    case "matchers":
      models.matchers = new Matchers(message.link);
      break;
    case "stats":
      answer(message.id, () => models.stats());
      break;
    case "stop":
      return "stop";
  }
  return "go on";
}

/** A question that fails costs itself, not the Worker. */
function answer(id: number, work: () => unknown): void {
  try {
    reply({ kind: "answer", id, answer: work() });
  } catch (error) {
    reply({ kind: "failed", id, message: error instanceof Error ? error.message : String(error) });
  }
}
