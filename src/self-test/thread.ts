// The thread that checks or measures a device: the only one in its process that touches MLX.
import { workerData } from "node:worker_threads";
import { openBlas } from "../../ffi/blas.ts";
import { openDevice } from "../device/open.ts";
import type { WorkerSetup } from "../engine/protocol.ts";
import { openMlx } from "../mlx/runtime.ts";
import { Scope } from "../mlx/scope.ts";
import { inspect } from "../worker/inspect.ts";
import { deviceChecks, outcomeOf } from "./device-checks.ts";
import { type Job, perform, tell } from "./lines.ts";
import { measureLimits, speedChecks } from "./speed-checks.ts";

const { setup, job } = workerData as { setup: WorkerSetup; job: Job };

const blas = openBlas(setup.library);
const runtime = openMlx(setup.library, setup.device ? { device: setup.device } : {});
const device = openDevice(runtime.backend, runtime.device);
const isChosen = ({ name }: { name: string }) => name.includes(job.only);
if (job.part === "speed") {
  const checks = speedChecks.filter(isChosen);
  tell({ kind: "plan", checks: checks.map(({ name }) => name) });
  const limits = checks.length > job.from ? measureLimits(device) : undefined;
  await perform(checks, job, (check) => {
    using _ = new Scope();
    return { figures: check.run(device, limits!) };
  });
} else {
  const checks = deviceChecks(device).filter(isChosen);
  const engine = inspect(runtime, blas, true);
  tell({ kind: "plan", checks: checks.map(({ name }) => name), engine });
  await perform(checks, job, (check) => outcomeOf(check, device));
}
device.free();
runtime.stream.synchronize();
