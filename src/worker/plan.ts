// What a model takes: its weights as this device holds them, and what its layers keep of sequences. A plan builds
// the model as a load does, with arrays that are never filled: so it finds what a load would fail at.
import type { Device } from "../device/device.ts";
import type { EngineOptions, ModelPlan } from "../engine/protocol.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { bytesOf, type Costs, layoutFor, layoutOf, slotsFor } from "../kv/budget.ts";
import { type CacheLayout, KvCache } from "../kv/kv-cache.ts";
import { memoryLimit } from "../mlx/memory.ts";
import { type LoadedModel, loadModel } from "../model/load.ts";
import { blockBytes, groupsOf, slotBytes } from "../model/states.ts";

export type KvPlan = {
  costs: Costs;
  layout: CacheLayout;
  /** The longest sequence, if there is memory for it. */
  longest: number;
  stepTokens: number;
};

/** How the memory for KV blocks and states is divided. */
export function kvPlan(
  device: Device,
  { shape: { maxPositions }, states, dtype }: Pick<LoadedModel, "shape" | "states" | "dtype">,
  options: EngineOptions,
  unloadedBytes = 0,
): KvPlan {
  const { maxBatch, snapshotBytes } = options;
  const costs = {
    groups: groupsOf(states).map((group) => {
      return { window: group.window, blockBytes: blockBytes(group, device.kvType(dtype)) };
    }),
    slotBytes: slotBytes(states),
  };
  const longest = Math.min(maxPositions, options.maxLength ?? maxPositions);
  const stepTokens = Math.max(options.tokenBudget ?? device.tokenBudget, maxBatch);
  const demand = { maxBatch, maxLength: longest, stepTokens, snapshotBytes };
  const bytes = options.kvBytes ?? device.kvBytes(unloadedBytes);
  const layout =
    options.blocks === undefined
      ? layoutFor(costs, demand, bytes)
      : layoutOf(costs, demand, options.blocks, slotsFor(costs, demand, bytes));
  return { costs, layout, longest, stepTokens };
}

export function planModel(device: Device, path: string, options: EngineOptions): ModelPlan {
  const { dtype, keepUnpacked: keepDequantized } = options;
  const sketch: Device = { ...device, isSketch: true };
  const model = loadModel(path, { device: sketch, dtype, keepDequantized });
  try {
    const { costs, layout, longest } = kvPlan(device, model, options, model.weightBytes);
    return {
      backend: device.backend,
      dtype: model.dtype,
      weightBytes: model.weightBytes,
      maxPositions: model.shape.maxPositions,
      maxLength: Math.min(longest, new KvCache(layout).maxLength),
      kv: costs.groups.map((group) => ({
        bytesPerToken: group.blockBytes / BLOCK_TOKENS,
        window: group.window,
      })),
      stateBytes: costs.slotBytes,
      kvBytes: bytesOf(costs, layout),
      memoryLimitBytes: memoryLimit(),
    };
  } finally {
    model.free();
  }
}
