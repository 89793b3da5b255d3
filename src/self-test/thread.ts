// The thread that checks a device: the only one of its process that touches MLX.
import { workerData } from "node:worker_threads";
import { openBlas } from "../../ffi/blas.ts";
import { openDevice } from "../device/open.ts";
import type { WorkerSetup } from "../engine/protocol.ts";
import { openMlx } from "../mlx/runtime.ts";
import { inspect } from "../worker/inspect.ts";
import { deviceChecks, outcomeOf } from "./device-checks.ts";
import { type Job, perform, tell } from "./lines.ts";

const { setup, job } = workerData as { setup: WorkerSetup; job: Job };

const blas = openBlas(setup.library);
const runtime = openMlx(setup.library, setup.device ? { device: setup.device } : {});
const device = openDevice(runtime.backend, runtime.device);
const checks = deviceChecks(device).filter(({ name }) => name.includes(job.only));
const engine = inspect(runtime, blas, true);
tell({ kind: "plan", checks: checks.map(({ name }) => name), engine });
await perform(checks, job.from, (check) => outcomeOf(check, device));
device.free();
runtime.stream.synchronize();
