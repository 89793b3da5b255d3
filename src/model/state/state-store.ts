// All state that a model keeps of its sequences: keys, values and latents in blocks, recurrent states in slots.
import type { Compute, HostTransfer, Memory } from "../../device/device.ts";
import type { BlockCopy, CacheLayout, SlotMove } from "../../kv/kv-cache.ts";
import type { MlxArray } from "../../mlx/array.ts";
import type { Dtype } from "../../mlx/dtype.ts";
import type { Step } from "../contract/model.ts";
import type { LayerStates } from "../contract/states.ts";
import { type DecodeShape, type KvRow, PagedKvStore, tableWidth } from "./paged-kv-store.ts";
import { SlotStore } from "./slot-store.ts";

/** Consecutive tokens of one sequence, its blocks, and its recurrent state's slots. */
export type StateRow = KvRow & { move?: SlotMove | undefined };

/** The integers of a decode step with one token per row, as inputs of a function, and their shape. */
export type DecodeInputs = { arrays: Int32Array[]; shape: DecodeShape };

/** The integers of a step with prompts, and the width of its tables. */
export type PromptInputs = { arrays: Int32Array[]; width: number };

export class StateStore {
  readonly #device: Compute & HostTransfer & Memory;
  readonly #kv: PagedKvStore;
  readonly #slots: SlotStore | undefined;

  /** Frees its pools if memory runs out. */
  constructor(
    device: Compute & HostTransfer & Memory,
    states: LayerStates,
    { groups, slots }: CacheLayout,
    dtype: Dtype,
  ) {
    const blocks = groups.map((group) => group.blocks);
    this.#device = device;
    this.#kv = new PagedKvStore(device, states, blocks, dtype);
    try {
      if (slots !== undefined) this.#slots = new SlotStore(device, states.slots, slots);
    } catch (error) {
      this.#kv.free();
      throw error;
    }
  }

  get bytes(): number {
    return this.#kv.bytes + (this.#slots?.bytes ?? 0);
  }

  /** A padding row. */
  scratchRow(start: number, count: number): StateRow {
    return this.#kv.scratchRow(start, count);
  }

  /**
   * A step over these rows. Its tokens must depend on the last launch that touched the pools, and on `copy`. Call it
   * in a scope: it makes arrays. `onQueries`: see PagedKvStore.begin.
   */
  begin(rows: readonly StateRow[], onQueries?: (queries: MlxArray) => void): Step {
    const slots = this.#slots;
    return {
      ...without,
      ...this.#kv.begin(rows, onQueries),
      ...slots?.step(this.#device.spread(slots.movesOf(rows))),
    };
  }

  decodeInputs(rows: readonly StateRow[]): DecodeInputs {
    const { tables, width } = this.#kv.tablesOf(rows);
    const moves = this.#slots ? [this.#slots.movesOf(rows)] : [];
    return { arrays: [...moves, ...tables], shape: { width, parts: this.#kv.partsOf(rows) } };
  }

  /** Takes arrays in the layout of `decodeInputs`, which may be inputs of a function being traced. */
  decodeStep(arrays: readonly MlxArray[], shape: DecodeShape): Step {
    if (!this.#slots) return { ...without, ...this.#kv.decodeStep(arrays, shape) };
    const [moves, ...tables] = arrays;
    return { ...without, ...this.#kv.decodeStep(tables, shape), ...this.#slots.step(moves!) };
  }

  /** The integers of a step with prompts, if it takes nothing else. */
  promptInputs(rows: readonly StateRow[]): PromptInputs | undefined {
    if (!this.#kv.areChunked || this.#slots) return undefined;
    return { arrays: this.#kv.chunkInputs(rows, true), width: tableWidth(rows) };
  }

  /** Takes arrays in the layout of `promptInputs`, which may be inputs of a function being traced. */
  promptStep(arrays: readonly MlxArray[]): Step {
    return { ...without, ...this.#kv.chunkStep(arrays) };
  }

  /** Whether a layer of this rank has blocks of the group. */
  hasGroup(group: number): boolean {
    return this.#kv.hasGroup(group);
  }

  copy(copies: readonly BlockCopy[], before: MlxArray | undefined): MlxArray {
    return this.#kv.copy(copies, before);
  }

  free(): void {
    this.#kv.free();
    this.#slots?.free();
  }
}

function missing(): never {
  throw new Error("the model has declared no state of this kind");
}

/** For models without the kind of state. */
const without: Omit<Step, "attend" | "positions"> = {
  attendLatent: missing,
  convolve: missing,
  scan: missing,
};
