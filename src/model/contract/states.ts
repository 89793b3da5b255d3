// What the layers of a model keep of a sequence. An architecture declares it while it builds its blocks, and
// everything else follows from that: which pools there are, what a token and a sequence cost, what can be given back.
import type { LatentShape } from "../../kernels/attention/latent-attention.ts";
import { BLOCK_TOKENS } from "../../kv/blocks.ts";
import { bytesOf, type Dtype } from "../../mlx/dtype.ts";

export type KvShape = {
  heads: number;
  kvHeads: number;
  headDim: number;
  /** How many of the latest tokens a token attends to; all unless it says. */
  window?: number | undefined;
};

/** Keys and values of an attention layer, in blocks. */
export type KvState = Readonly<KvShape> & {
  /** Its place among those of its kind. */
  readonly index: number;
};

/** Of each token one vector that all heads share: `latent` features, and `rotary` ones with its position. */
export type LatentState = Readonly<LatentShape> & { readonly index: number };

/** An array of fixed size of a recurrent layer, in the slot of a sequence. */
export type SlotState = { readonly shape: readonly number[]; readonly index: number };

export class LayerStates {
  /** Of groups that come first, in this order, also where no state of this rank is in them. */
  readonly windows: readonly (number | undefined)[];
  /** Of all tokens of longer sequences other keys are kept (`originalLength` of rope.ts). */
  readonly originalLength: number | undefined;
  readonly kvs: KvState[] = [];
  readonly latents: LatentState[] = [];
  readonly slots: SlotState[] = [];

  constructor(windows: readonly (number | undefined)[] = [], originalLength?: number) {
    this.windows = windows;
    this.originalLength = originalLength;
  }

  kv({ heads, kvHeads, headDim, window }: KvShape): KvState {
    const state: KvState = { heads, kvHeads, headDim, window, index: this.kvs.length };
    this.kvs.push(state);
    return state;
  }

  latent({ heads, latent, rotary }: LatentShape): LatentState {
    const state: LatentState = { heads, latent, rotary, index: this.latents.length };
    this.latents.push(state);
    return state;
  }

  slot(...shape: readonly number[]): SlotState {
    const state: SlotState = { shape, index: this.slots.length };
    this.slots.push(state);
    return state;
  }
}

/** States whose tokens are seen equally long: a sequence has one table of blocks for all of them. */
export type StateGroup = {
  window: number | undefined;
  kvs: readonly KvState[];
  latents: readonly LatentState[];
};

/** Latents have no window. */
export function groupsOf({ windows: first, kvs, latents }: LayerStates): StateGroup[] {
  const windows = new Set([
    ...first,
    ...kvs.map(({ window }) => window),
    ...latents.map(() => undefined),
  ]);
  return Array.from(windows, (window) => ({
    window,
    kvs: kvs.filter((state) => state.window === window),
    latents: window === undefined ? latents : [],
  }));
}

/** What a block takes in all its layers. */
export function blockBytes({ kvs, latents }: StateGroup, kept: Dtype): number {
  const numbers =
    kvs.reduce((sum, { kvHeads, headDim }) => sum + 2 * kvHeads * headDim, 0) +
    latents.reduce((sum, { latent, rotary }) => sum + latent + rotary, 0);
  return numbers * BLOCK_TOKENS * bytesOf(kept);
}

/** What a sequence's slot takes in all layers, in float32. */
export function slotBytes({ slots }: LayerStates): number {
  return slots.reduce((sum, { shape }) => sum + 4 * shape.reduce((a, b) => a * b), 0);
}
