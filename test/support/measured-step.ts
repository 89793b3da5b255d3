// What a step really takes, as MLX's allocator counts it.
import { check } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";
import { activeMemory, clearCache } from "../../src/mlx/memory.ts";
import { groupsOf } from "../../src/model/contract/states.ts";
import { loadModel } from "../../src/model/load.ts";
import { Runner } from "../../src/model/run/runner.ts";
import { StateStore } from "../../src/model/state/state-store.ts";
import { largestStep } from "../../src/worker/step-needs.ts";
import { deviceOf } from "./devices.ts";

/** The most bytes that arrays hold at once during a run, less those held before it. */
export function peakDuring(run: () => void): number {
  clearCache();
  const before = activeMemory();
  check("mlx_reset_peak_memory", mlxc.mlx_reset_peak_memory());
  run();
  check("mlx_get_peak_memory", mlxc.mlx_get_peak_memory(out.view));
  return out.take() - before;
}

/** The most that the arrays of such a step hold at once, of several: the host is not always as far ahead. */
export function measuredStep(
  path: string,
  size: { maxBatch: number; tokens: number; length: number },
  steps = 2,
): number {
  const device = deviceOf("cpu");
  const model = loadModel(path, { device });
  const layout = {
    groups: groupsOf(model.states).map(({ window }) => ({ blocks: 1, window })),
    slots: model.states.slots.length > 0 ? 1 : undefined,
  };
  const store = new StateStore(device, model.states, layout, model.dtype);
  const runner = new Runner(device, model, store);
  const peaks = Array.from({ length: 1 + steps }, () =>
    peakDuring(() => runner.launch(largestStep(store, size)).read()),
  );
  runner.free();
  store.free();
  model.free();
  // The first step also makes what is kept for later ones.
  return Math.max(...peaks.slice(1));
}
