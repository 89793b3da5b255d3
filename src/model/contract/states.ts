// Declares the state that a model's layers keep per sequence, while an architecture builds its blocks. The pools, the
// memory per token and per sequence, and which blocks can be freed follow from these states.
import type { LatentShape } from "../../kernels/attention/latent-attention.ts";
import { BLOCK_TOKENS } from "../../kv/blocks.ts";
import { bytesOf, type Dtype } from "../../mlx/dtype.ts";

export type KvShape = {
  heads: number;
  kvHeads: number;
  headDim: number;
  /** Maximum number of latest tokens that a token attends to; undefined for all. */
  window?: number | undefined;
};

/** Keys and values of an attention layer, in blocks. */
export type KvState = Readonly<KvShape> & {
  /** Index among the model's states of this kind. */
  readonly index: number;
};

/** One vector per token, shared by all heads: `latent` features, then `rotary` features that RoPE rotates. */
export type LatentState = Readonly<LatentShape> & { readonly index: number };

/** An array of fixed size that a recurrent layer keeps per sequence, in the sequence's slot. */
export type SlotState = { readonly shape: readonly number[]; readonly index: number };

export class LayerStates {
  /** Windows of the first block groups, in order. These groups exist even if this rank has no state in them. */
  readonly windows: readonly (number | undefined)[];
  /** Maximum length of sequences whose keys are rotated by longrope's short factors (`originalLength` of rope.ts). */
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

/** States with the same window: a sequence has one block table for all of them. */
export type StateGroup = {
  window: number | undefined;
  kvs: readonly KvState[];
  latents: readonly LatentState[];
};

/** Groups states by window. Latents have no window. */
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

/** Returns the bytes that a block takes in all layers of its group. */
export function blockBytes({ kvs, latents }: StateGroup, kept: Dtype): number {
  const numbers =
    kvs.reduce((sum, { kvHeads, headDim }) => sum + 2 * kvHeads * headDim, 0) +
    latents.reduce((sum, { latent, rotary }) => sum + latent + rotary, 0);
  return numbers * BLOCK_TOKENS * bytesOf(kept);
}

/** Returns the bytes that a sequence's slot takes in all recurrent layers, in float32. */
export function slotBytes({ slots }: LayerStates): number {
  return slots.reduce((sum, { shape }) => sum + 4 * shape.reduce((a, b) => a * b), 0);
}
