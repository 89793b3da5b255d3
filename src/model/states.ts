// What the layers of a model keep of a sequence. An architecture declares it while it builds its blocks, and
// everything else follows from that: which pools there are, what a token costs, what can be given back.
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { bytesOf, type Dtype } from "../mlx/dtype.ts";

export type KvShape = {
  heads: number;
  kvHeads: number;
  headDim: number;
  /** How many of the latest tokens a token attends to; all unless it says. */
  window?: number | undefined;
};

/** Keys and values of an attention layer, in blocks. */
export type KvState = Readonly<KvShape> & {
  /** Its place among all states of the model. */
  readonly index: number;
};

export class LayerStates {
  readonly all: KvState[] = [];

  kv({ heads, kvHeads, headDim, window }: KvShape): KvState {
    const state: KvState = { heads, kvHeads, headDim, window, index: this.all.length };
    this.all.push(state);
    return state;
  }
}

/** States whose tokens are seen equally long: a sequence has one table of blocks for all of them. */
export type StateGroup = { window: number | undefined; states: readonly KvState[] };

export function groupsOf(states: readonly KvState[]): StateGroup[] {
  const groups = Map.groupBy(states, ({ window }) => window);
  return Array.from(groups, ([window, members]) => ({ window, states: members }));
}

/** What a block takes in all its layers. */
export function blockBytes({ states }: StateGroup, kept: Dtype): number {
  const numbers = states.reduce((sum, { kvHeads, headDim }) => sum + 2 * kvHeads * headDim, 0);
  return numbers * BLOCK_TOKENS * bytesOf(kept);
}
