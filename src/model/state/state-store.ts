// Stores all state that a model keeps per sequence: keys, values and latents in blocks, recurrent states in slots.
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

/** Integers that a decode step with one token per row takes as inputs, and the step's shape. */
export type DecodeInputs = { arrays: Int32Array[]; shape: DecodeShape };

/** Integers that a step with prompts takes as inputs, and the width of its block tables. */
export type PromptInputs = { arrays: Int32Array[]; width: number };

export class StateStore {
  readonly #device: Compute & HostTransfer & Memory;
  readonly #kv: PagedKvStore;
  readonly #slots: SlotStore | undefined;

  /** Allocates the pools. Frees them if memory runs out. */
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

  /** Makes a padding row. */
  scratchRow(start: number, count: number): StateRow {
    return this.#kv.scratchRow(start, count);
  }

  /**
   * Makes a step over these rows. The step's tokens must depend on the last launch that touched the pools, and on
   * `copy`. Call it in a scope: it makes arrays. `onQueries`: see PagedKvStore.begin.
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

  /** Makes a decode step. The arrays have the layout of `decodeInputs` and may be inputs of a traced function. */
  decodeStep(arrays: readonly MlxArray[], shape: DecodeShape): Step {
    if (!this.#slots) return { ...without, ...this.#kv.decodeStep(arrays, shape) };
    const [moves, ...tables] = arrays;
    return { ...without, ...this.#kv.decodeStep(tables, shape), ...this.#slots.step(moves!) };
  }

  /** Packs the integers of a step with prompts; undefined if such a step needs other inputs too. */
  promptInputs(rows: readonly StateRow[]): PromptInputs | undefined {
    if (!this.#kv.areChunked || this.#slots) return undefined;
    return { arrays: this.#kv.chunkInputs(rows, true), width: tableWidth(rows) };
  }

  /** Makes a step with prompts from arrays like `promptInputs`, which may be inputs of a traced function. */
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

/** Step functions that throw, for models without such state. */
const without: Omit<Step, "attend" | "positions"> = {
  attendLatent: missing,
  convolve: missing,
  scan: missing,
};
