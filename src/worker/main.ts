// The engine Worker: the only thread that touches MLX.
import { workerData } from "node:worker_threads";
import { openBlas } from "../../ffi/blas.ts";
import { traceReport } from "../../ffi/trace.ts";
import { openDevice } from "../device/open.ts";
import { type Mailbox, receive } from "../engine/mailbox.ts";
import type { FromWorker, ToWorker, WorkerSetup } from "../engine/protocol.ts";
import { Matchers } from "../grammar/matchers.ts";
import { openMlx } from "../mlx/runtime.ts";
import { apart } from "../mlx/scope.ts";
import { inspect } from "./inspect.ts";
import { loop, stepAll } from "./loop.ts";
import { Models } from "./models.ts";

const { mailbox, setup } = workerData as { mailbox: Mailbox; setup: WorkerSetup };
const reply = (message: FromWorker) => mailbox.port.postMessage(message);

const { library, device, trace } = setup;
const blas = openBlas(library);
const runtime = openMlx(library, device ? { device, trace } : { trace });
const models = new Models(() => openDevice(runtime.backend));
reply({ kind: "ready" });
/** What came while a model was loaded, and has to wait for that. */
const later: ToWorker[] = [];
loop(models, (timeoutMs) => later.shift() ?? receive(mailbox, timeoutMs), handle, reply);
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
      const othersGoOn = othersBetween();
      const hooks = { onProgress, onRead: () => apart(othersGoOn) };
      answer(id, () => models.load(model, path, options, hooks));
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

/** Between two reads for a model that is loaded the others have as much time as a read took. */
function othersBetween(): () => void {
  let [now, owedMs] = [performance.now(), 0];
  const elapsed = () => {
    const before = now;
    now = performance.now();
    return now - before;
  };
  return () => {
    owedMs += elapsed();
    for (;;) {
      takeInForOthers();
      if (!models.busy) owedMs = 0;
      if (owedMs <= 0 || !stepAll(models, reply)) return;
      owedMs -= elapsed();
    }
  };
}

function takeInForOthers(): void {
  for (;;) {
    const message = receive<ToWorker>(mailbox, 0);
    if (!message) return;
    if (isForOthers(message)) handle(message);
    else later.push(message);
  }
}

/** Not for the model that is loaded, and nothing that changes which models there are. */
function isForOthers(message: ToWorker): boolean {
  if (message.kind === "submit") return models.get(message.model) !== undefined;
  if (message.kind === "abort") return [...models].some((engine) => engine.has(message.id));
  return message.kind === "stats";
}

/** A question that fails costs itself, not the Worker. */
function answer(id: number, work: () => unknown): void {
  try {
    reply({ kind: "answer", id, answer: work() });
  } catch (error) {
    reply({ kind: "failed", id, message: error instanceof Error ? error.message : String(error) });
  }
}
