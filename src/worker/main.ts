// The engine Worker, the only thread that touches MLX: opens MLX, runs the loop until the stop message, and
// frees everything.
import { workerData } from "node:worker_threads";
import { openBlas } from "../../ffi/blas.ts";
import { traceReport } from "../../ffi/trace.ts";
import { openDevice } from "../device/open.ts";
import { receive } from "../engine/mailbox.ts";
import type { FromWorker, WorkerData } from "../engine/protocol.ts";
import { watchCompiles } from "../mlx/kernel.ts";
import { openMlx } from "../mlx/runtime.ts";
import { inspect } from "./inspect.ts";
import { loop } from "./loop.ts";
import { MessageHandler } from "./message-handler.ts";
import { Models } from "./models.ts";
import { RankLink } from "./rank-link.ts";

const { mailbox, setup, ranks } = workerData as WorkerData;
const reply = (message: FromWorker) => mailbox.port.postMessage(message);

const { library, device, trace } = setup;
const blas = openBlas(library);
const runtime = openMlx(library, device ? { device, trace } : { trace });
const link = ranks && new RankLink(ranks);
const models = new Models(
  () => openDevice(runtime.backend, runtime.device),
  (result) => reply({ kind: "step", ...result }),
  link,
);
const handler = new MessageHandler({
  models,
  receive: (timeoutMs) => receive(mailbox, timeoutMs),
  reply,
  inspect: (measure) => inspect(runtime, blas, measure),
});
let kernels = 0;
watchCompiles((kernel) => {
  kernels += 1;
  reply({ kind: "activity", activity: { kind: "compile", kernel, done: kernels } });
});
reply({ kind: "ready" });
loop(models, handler);
models.free();
runtime.stream.synchronize();
if (trace) console.table(traceReport().slice(0, 20));
mailbox.port.close();
