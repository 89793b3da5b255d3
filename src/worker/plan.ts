// Estimates a model's memory on a device before it is loaded: weights in the device's format, KV blocks and recurrent
// states, and the arrays of steps.
import type { Device, Memory, StepPolicy } from "../device/device.ts";
import { roomOf } from "../device/memory.ts";
import type { EngineOptions, ModelPlan } from "../engine/protocol.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import type { Costs } from "../kv/budget.ts";
import { plannedGroup } from "../mlx/distributed.ts";
import { blockBytes, groupsOf, slotBytes } from "../model/contract/states.ts";
import type { LoadedModel, LoadOptions } from "../model/load.ts";
import { divide, type Parts, type Ranks } from "./division.ts";
import {
  limitsOf,
  type Machine,
  type MemoryPlan,
  type ModelNeeds,
  NoMemoryError,
  planMemory,
} from "./planner.ts";
import { type Sketched, sketchModel, sketchParts } from "./step-needs.ts";

type SketchedModel = {
  sketched: Sketched;
  costs: Costs;
  needs: ModelNeeds;
  /** Division of the model, if it runs on ranks. */
  parts: Parts | undefined;
  /** Whether to keep a dequantized copy of quantized weights. */
  keepDequantized: boolean;
};

/** Describes the whole machine, or the share of it that one of its ranks has. */
export function machineOf({ memory, tokenBudget }: Memory & StepPolicy, ranks?: Ranks): Machine {
  const facts = memory.facts();
  const { usableBytes, availableBytes } = facts;
  const shared = ranks?.localSize ?? 1;
  return {
    ...memory.policy,
    facts: { ...facts, usableBytes: usableBytes / shared, availableBytes: availableBytes / shared },
    tokenBudget,
  };
}

/** Returns the needs of a model, or of its first rank. Throws a load's errors, except for lack of memory. */
export function needsOf(
  device: Device,
  path: string,
  options: EngineOptions,
  ranks?: Ranks,
): SketchedModel {
  const { dtype, maxBatch, maxLength } = options;
  const keepDequantized = options.keepUnpacked ?? isSpare(device, path, dtype);
  const kind = { dtype, keepDequantized };
  const parts = ranks && divide(device, path, kind, ranks);
  const stages = parts?.parallel === "pipeline" ? parts : undefined;
  const sketched = sketchModel(device, path, stages ? kind : { ...kind, ...parts }, {
    maxBatch,
    tokens: Math.max(options.tokenBudget ?? device.tokenBudget, maxBatch),
    maxLength: typeof maxLength === "number" ? maxLength : undefined,
  });
  const whole = { weightBytes: sketched.weightBytes, costs: costsOf(device, sketched) };
  const { weightBytes, costs } = stages
    ? largestStage(device, path, kind, sketched, stages)
    : whole;
  const { shape } = sketched;
  // A device that records steps has two buffers: one for all recorded steps, one for steps that are not recorded.
  const held = device.paddedTokens ? 2 : 1;
  const stepBytes: typeof sketched.stepBytes = (...step) => held * sketched.stepBytes(...step);
  const needs = { weightBytes, costs, maxPositions: shape.maxPositions, stepBytes };
  return { sketched, costs, needs, parts, keepDequantized };
}

/** Whether a dequantized copy of the weights fits in the fraction `spareShare` of the device's free memory. */
function isSpare(device: Device, path: string, dtype: LoadOptions["dtype"]): boolean {
  if (!device.spareShare) return false;
  const bytesOf = (keepDequantized: boolean) =>
    sketchParts(device, path, { dtype, keepDequantized }).weightBytes;
  const copy = bytesOf(true) - bytesOf(false);
  return copy > 0 && copy <= device.spareShare * roomOf(device.memory.facts());
}

export function planModel(
  device: Device,
  path: string,
  options: EngineOptions,
  ranks?: Ranks,
): ModelPlan {
  const { sketched, costs, needs } = needsOf(device, path, options, ranks);
  const { dtype, weightBytes, shape } = sketched;
  const machine = machineOf(device, ranks);
  const { plan, refusal } = planned(machine, needs, options);
  const { facts } = machine;
  return {
    backend: device.backend,
    dtype,
    weightBytes,
    maxPositions: shape.maxPositions,
    kv: costs.groups.map((group) => ({
      bytesPerToken: group.blockBytes / BLOCK_TOKENS,
      window: group.window,
    })),
    stateBytes: costs.slotBytes,
    maxLength: plan?.maxLength ?? 0,
    kvBytes: plan?.kvBytes ?? 0,
    stepTokens: plan?.stepTokens ?? 0,
    stepBytes: plan?.stepBytes ?? 0,
    memoryLimitBytes: roomOf(facts) + facts.activeBytes,
    wiredBytes: plan ? limitsOf(machine, [plan]).wiredBytes : 0,
    refusal,
  };
}

function planned(
  machine: Machine,
  needs: ModelNeeds,
  options: EngineOptions,
): { plan?: MemoryPlan; refusal?: string } {
  try {
    return { plan: planMemory(machine, needs, options) };
  } catch (error) {
    if (!(error instanceof NoMemoryError)) throw error;
    return { refusal: error.message };
  }
}

type Held = Pick<ModelNeeds, "weightBytes" | "costs">;

/** Returns the largest needs of any pipeline rank, scaled to the memory of the first rank. */
function largestStage(
  device: Device,
  path: string,
  kind: Pick<LoadOptions, "dtype" | "keepDequantized">,
  { states }: Pick<LoadedModel, "states">,
  parts: Parts,
): Held {
  const { memory } = parts;
  const windows = groupsOf(states).map(({ window }) => window);
  const ranks = memory.map((bytes, rank): Held => {
    const group = plannedGroup(rank, memory.length);
    const part = sketchParts(device, path, { ...kind, ...parts, group, windows });
    const share = memory[0]! / bytes;
    return { weightBytes: part.weightBytes * share, costs: scaled(costsOf(device, part), share) };
  });
  const most = (take: (held: Held) => number) => Math.max(...ranks.map(take));
  return {
    weightBytes: most((held) => held.weightBytes),
    costs: {
      groups: windows.map((window, group) => {
        return { window, blockBytes: most(({ costs }) => costs.groups[group]!.blockBytes) };
      }),
      slotBytes: most(({ costs }) => costs.slotBytes),
    },
  };
}

function scaled({ groups, slotBytes }: Costs, share: number): Costs {
  return {
    groups: groups.map((group) => ({ ...group, blockBytes: group.blockBytes * share })),
    slotBytes: slotBytes * share,
  };
}

/** Returns the bytes of a block in each group, and of a slot. */
function costsOf(device: Memory, { states, dtype }: Pick<LoadedModel, "states" | "dtype">): Costs {
  return {
    groups: groupsOf(states).map((group) => {
      return { window: group.window, blockBytes: blockBytes(group, device.kvType(dtype)) };
    }),
    slotBytes: slotBytes(states),
  };
}
