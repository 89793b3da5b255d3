// States of recurrent layers: one pool per layer and array, with a slot for each running sequence and each snapshot.
// A step reads a row's state from one slot and writes it to another or the same one: kernels write pools in place.
// All states are float32.
import type { Compute, Memory } from "../../device/device.ts";
import { packMoves, type Recurrence } from "../../kernels/recurrence/recurrence.ts";
import { NONE, type SlotMove } from "../../kv/kv-cache.ts";
import { evaluate, type MlxArray } from "../../mlx/array.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import type { Step } from "../contract/model.ts";
import type { SlotState } from "../contract/states.ts";

export class SlotStore {
  /** Index of a spare slot after the last one: padding rows write there. */
  readonly #scratch: number;
  readonly #pools: MlxArray[] = [];
  readonly #recurrence: Recurrence;

  /** Allocates the pools. Frees them if memory runs out. */
  constructor(device: Compute & Memory, states: readonly SlotState[], slots: number) {
    this.#scratch = slots;
    this.#recurrence = device.recurrence();
    try {
      for (const { shape } of states) {
        using _ = new Scope();
        const pool = device.allocate([slots + 1, ...shape], "float32");
        evaluate(pool);
        this.#pools.push(hold(pool));
      }
    } catch (error) {
      this.free();
      throw error;
    }
  }

  get bytes(): number {
    return this.#pools.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Packs each row's move (from slot, to slot) in the kernels' layout. Rows without a move are padding. */
  movesOf(rows: readonly { count: number; move?: SlotMove | undefined }[]): Int32Array {
    const scratch = { from: NONE, to: this.#scratch };
    let first = 0;
    const moves = rows.map(({ count, move = scratch }) => {
      first += count;
      return { first: first - count, count, ...move };
    });
    return packMoves(moves);
  }

  /** Makes the part of a step that uses slots. The moves may be an input of a traced function. */
  step(moves: MlxArray): Pick<Step, "convolve" | "scan"> {
    const recurrence = this.#recurrence;
    return {
      convolve: ({ index }, x, convolution) =>
        recurrence.convolve(x, this.#pools[index]!, moves, convolution),
      scan: ({ index }, inputs, scan) => recurrence.scan(inputs, this.#pools[index]!, moves, scan),
    };
  }

  free(): void {
    this.#recurrence.free();
    for (const pool of this.#pools.splice(0)) pool.free();
  }
}
