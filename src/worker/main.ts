// The engine Worker: the only thread that touches MLX.
import { workerData } from "node:worker_threads";
import { openBlas } from "../../ffi/blas.ts";
import { traceReport } from "../../ffi/trace.ts";
import { type Mailbox, receive } from "../engine/mailbox.ts";
import type { FromWorker, ToWorker, WorkerSetup } from "../engine/protocol.ts";
import { openMlx } from "../mlx/runtime.ts";
import { inspect } from "./inspect.ts";

const { mailbox, setup } = workerData as { mailbox: Mailbox; setup: WorkerSetup };
const reply = (message: FromWorker) => mailbox.port.postMessage(message);

const { library, device, trace } = setup;
const blas = openBlas(library);
const runtime = openMlx(library, device ? { device, trace } : { trace });
reply({ kind: "ready" });
serve();
runtime.stream.synchronize();
if (trace) console.table(traceReport().slice(0, 20));
reply({ kind: "stopped" });
mailbox.port.close();

function serve(): void {
  for (;;) {
    const message = receive<ToWorker>(mailbox);
    switch (message.kind) {
      case "inspect":
        answer(message.id, () => ({
          kind: "inspected",
          id: message.id,
          report: inspect(runtime, blas),
        }));
        break;
      case "stop":
        return;
    }
  }
}

/** A request that fails costs itself, not the Worker. */
function answer(id: number, work: () => FromWorker): void {
  try {
    reply(work());
  } catch (error) {
    reply({ kind: "failed", id, message: error instanceof Error ? error.message : String(error) });
  }
}
