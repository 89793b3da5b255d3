// How the memory for what layers keep is divided among their groups.
import { BLOCK_TOKENS } from "./blocks.ts";
import type { CacheLayout } from "./kv-cache.ts";

export type GroupCost = {
  /** What a block takes in all layers of the group. */
  blockBytes: number;
  window: number | undefined;
};

export type Demand = {
  /** Sequences that run at once, and the longest that they may become. */
  maxBatch: number;
  maxLength: number;
  /** Tokens of a step. */
  stepTokens: number;
};

/** A group with a window keeps one window of each so many tokens that there is memory for. */
const TOKENS_PER_WINDOW = 2048;

/** As many blocks as so many bytes hold, and no more than a full batch could use. */
export function blocksFor(costs: readonly GroupCost[], demand: Demand, bytes: number): number {
  const most = demand.maxBatch * Math.ceil(demand.maxLength / BLOCK_TOKENS);
  let [fits, fitsNot] = [0, most + 1];
  while (fitsNot - fits > 1) {
    const blocks = Math.floor((fits + fitsNot) / 2);
    if (bytesOf(costs, layoutOf(costs, demand, blocks)) <= bytes) fits = blocks;
    else fitsNot = blocks;
  }
  return Math.max(1, fits);
}

/** The blocks of each group, where those that see farthest have so many. */
export function layoutOf(
  costs: readonly GroupCost[],
  { stepTokens }: Demand,
  blocks: number,
): CacheLayout {
  const reach = ({ window = Number.POSITIVE_INFINITY }: GroupCost) => window;
  const farthest = Math.max(...costs.map(reach));
  const groups = costs.map((cost) => {
    const { window } = cost;
    if (window === undefined || window === farthest) return { blocks, window };
    const each = Math.ceil(window / BLOCK_TOKENS) + 1;
    const sequences = Math.ceil((blocks * BLOCK_TOKENS) / TOKENS_PER_WINDOW);
    const own = sequences * each + Math.ceil(stepTokens / BLOCK_TOKENS);
    return { blocks: Math.min(blocks, own), window };
  });
  return { groups };
}

export function bytesOf(costs: readonly GroupCost[], { groups }: CacheLayout): number {
  return groups.reduce((sum, { blocks }, i) => sum + blocks * costs[i]!.blockBytes, 0);
}
