// Divides cache memory between the groups of attention layers (blocks) and recurrent layers (slots).
import { BLOCK_TOKENS } from "./blocks.ts";
import type { CacheLayout } from "./kv-cache.ts";

export type Costs = {
  /** Groups of attention layers; `blockBytes`: bytes of a block over all layers of the group. */
  groups: readonly { blockBytes: number; window: number | undefined }[];
  /** Bytes of a slot over all recurrent layers; 0 without any. */
  slotBytes: number;
};

export type Demand = {
  /** Maximum number of running sequences, and maximum sequence length. */
  maxBatch: number;
  maxLength: number;
  /** Maximum tokens per step. */
  stepTokens: number;
  /** Bytes for snapshots of recurrent states; a quarter of the memory by default. */
  snapshotBytes?: number | undefined;
};

/** For each TOKENS_PER_WINDOW tokens in the largest group, a sliding-window group gets the blocks of one window. */
const TOKENS_PER_WINDOW = 2048;

/** Returns the largest layout that fits in `bytes`, but no larger than a full batch of maximum length can use. */
export function layoutFor(costs: Costs, demand: Demand, bytes: number): CacheLayout {
  const slots = slotsFor(costs, demand, bytes);
  const most = demand.maxBatch * Math.ceil(demand.maxLength / BLOCK_TOKENS);
  let [fits, fitsNot] = [1, most + 1];
  while (fitsNot - fits > 1) {
    const blocks = Math.floor((fits + fitsNot) / 2);
    if (bytesOf(costs, layoutOf(costs, demand, blocks, slots)) <= bytes) fits = blocks;
    else fitsNot = blocks;
  }
  return layoutOf(costs, demand, fits, slots);
}

/** Returns the number of slots for sequences (in at most half of `bytes` if there is attention) and for snapshots. */
export function slotsFor(
  { groups, slotBytes }: Costs,
  { maxBatch, snapshotBytes }: Demand,
  bytes: number,
): number | undefined {
  if (slotBytes === 0) return undefined;
  const snapshots = (snapshotBytes ?? bytes / 4) / slotBytes;
  const running = (groups.length > 0 ? bytes / 2 : bytes - bytes / 4) / slotBytes;
  return Math.max(1, Math.min(maxBatch, Math.floor(running))) + Math.max(1, Math.floor(snapshots));
}

/** Returns the layout. `blocks`: count for the group with the largest window; other groups may need fewer. */
export function layoutOf(
  { groups }: Costs,
  { stepTokens }: Demand,
  blocks: number,
  slots?: number,
): CacheLayout {
  const farthest = Math.max(...groups.map(({ window = Number.POSITIVE_INFINITY }) => window));
  return {
    slots,
    groups: groups.map(({ window }) => {
      if (window === undefined || window === farthest) return { blocks, window };
      const each = Math.ceil(window / BLOCK_TOKENS) + 1;
      const sequences = Math.ceil((blocks * BLOCK_TOKENS) / TOKENS_PER_WINDOW);
      const own = sequences * each + Math.ceil(stepTokens / BLOCK_TOKENS);
      return { blocks: Math.min(blocks, own), window };
    }),
  };
}

export function bytesOf({ groups, slotBytes }: Costs, layout: CacheLayout): number {
  const blocks = groups.reduce((sum, { blockBytes }, i) => {
    return sum + layout.groups[i]!.blocks * blockBytes;
  }, 0);
  return blocks + (layout.slots ?? 0) * slotBytes;
}
