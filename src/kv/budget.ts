// How the memory for what layers keep is divided: among groups of layers that keep blocks, and slots.
import { BLOCK_TOKENS } from "./blocks.ts";
import type { CacheLayout } from "./kv-cache.ts";

export type Costs = {
  /** `blockBytes`: what a block takes in all layers of the group. */
  groups: readonly { blockBytes: number; window: number | undefined }[];
  /** What a slot takes in all recurrent layers; 0 where there are none. */
  slotBytes: number;
};

export type Demand = {
  /** Sequences that run at once, and the longest that they may become. */
  maxBatch: number;
  maxLength: number;
  /** Tokens of a step. */
  stepTokens: number;
  /** For snapshots of recurrent states; a quarter of all unless it says. */
  snapshotBytes?: number | undefined;
};

/** A group with a window keeps one window of each so many tokens that there is memory for. */
const TOKENS_PER_WINDOW = 2048;

/** As many blocks and slots as so many bytes hold, and no more than a full batch could use. */
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

/** One for each sequence of a full batch, if they leave half of the memory, and snapshots. */
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

/** With so many blocks in the group that sees farthest. */
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
