// What runs the steps of one rank's part of a model.
import type { Device } from "../device/device.ts";
import type { Group } from "../mlx/distributed.ts";
import type { Model } from "../model/contract/model.ts";
import { Runner } from "../model/run/runner.ts";
import { StageRunner } from "../model/run/stage-runner.ts";
import type { StateStore } from "../model/state/state-store.ts";
import type { Parallel } from "../model/weights/weights.ts";

/** Steps under way where ranks have parts of every layer: the next is there before the last is read, so that none waits. */
const STEPS = 2;

/** Of ranks that have some of the layers, only the first draws, and knows of tokens. */
export function rankRunner(
  device: Device,
  model: Model,
  store: StateStore,
  { group, parallel }: { group: Group; parallel: Parallel },
): Runner | StageRunner {
  if (parallel === "tensor") return new Runner(device, model, store, group);
  if (group.rank > 0) return new StageRunner(model, store);
  return new Runner(device, model, store, undefined, { isStage: true });
}

/** How many steps are under way at most, and the parts that each passes one after the other where there are some. */
export function stepsOnRanks(parallel: Parallel, size: number) {
  return parallel === "pipeline" ? { depth: size, stages: size } : { depth: STEPS };
}
