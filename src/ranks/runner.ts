// Chooses the runner, which computes the steps of one rank's part of a model.
import type { Compute, HostTransfer, StepPolicy } from "../device/device.ts";
import type { Group } from "../mlx/distributed.ts";
import type { Model } from "../model/contract/model.ts";
import { Runner } from "../model/run/runner.ts";
import { StageRunner } from "../model/run/stage-runner.ts";
import type { StateStore } from "../model/state/state-store.ts";
import type { Parallel } from "../model/weights/stages.ts";

/** Maximum steps in flight with tensor parallelism: a second step is queued while one runs, so ranks never wait. */
const STEPS = 2;

/** Returns the runner of a rank. In a pipeline only the first rank handles tokens and samples. */
export function rankRunner(
  device: Compute & StepPolicy & HostTransfer,
  model: Model,
  store: StateStore,
  { group, parallel }: { group: Group; parallel: Parallel },
): Runner | StageRunner {
  if (parallel === "tensor") return new Runner(device, model, store, group);
  if (group.rank > 0) return new StageRunner(model, store);
  return new Runner(device, model, store, undefined, { isStage: true });
}

/** Returns the maximum number of steps in flight, and the number of pipeline stages, if any. */
export function stepsOnRanks(parallel: Parallel, size: number) {
  return parallel === "pipeline" ? { depth: size, stages: size } : { depth: STEPS };
}
