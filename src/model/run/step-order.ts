// Orders overlapping steps on the device: passes the tokens that a step draws to the next step without the host, and
// orders launches that write to the pools.
import type { Compute, HostTransfer, StepPolicy } from "../../device/device.ts";
import { asyncEvaluate, type MlxArray } from "../../mlx/array.ts";
import type { Group } from "../../mlx/distributed.ts";
import { less, maximum, slice, take, where } from "../../mlx/ops.ts";
import { hold } from "../../mlx/scope.ts";
import type { StateStore } from "../state/state-store.ts";
import type { StepInputs } from "./step.ts";

type Context = {
  device: Compute & StepPolicy & HostTransfer;
  store: StateStore;
  group: Group | undefined;
};

export class StepOrder {
  /** Whether this is the first of several pipeline stages, whose steps are evaluated when they are read. */
  readonly isStage: boolean;
  readonly #context: Context;
  /** Tokens that the last step draws, owned by this object. */
  #drawn: MlxArray | undefined;
  /** An array of the last step, until the step is read: the next step's writes are ordered after this array. */
  #latest: MlxArray | undefined;

  constructor(context: Context, isStage: boolean) {
    this.#context = context;
    this.isStage = isStage;
  }

  /** Whether the next step may be launched before the last one is read, with tokens that stay on the device. */
  get feeds(): boolean {
    const { device, group } = this.#context;
    return !this.isStage && (device.depth > 1 || group !== undefined);
  }

  /**
   * Returns the step's tokens, padded to `size`; tokens not known yet (`fed`) come from the last step's draw. The
   * array depends on the last step's writes to the pools and this step's block copies, so the step runs after both.
   */
  tokens(inputs: StepInputs, size: number): MlxArray {
    const { copies, fed } = inputs;
    const { device, store } = this.#context;
    const tokens = this.#fedTokens(inputs, size);
    const own = copies.filter(({ group }) => store.hasGroup(group));
    if (own.length > 0) return device.after(tokens, store.copy(own, this.#latest));
    // Orders known tokens after the last step; fed tokens depend on it already.
    return fed || !this.#latest ? tokens : device.after(tokens, this.#latest);
  }

  /** Starts to evaluate arrays of a step, which becomes the last step. */
  begin(arrays: Iterable<MlxArray>): void {
    const all = new Set(arrays);
    asyncEvaluate(...all);
    [this.#latest] = all;
  }

  /** Takes ownership of the tokens that a step draws, and returns those of the step before to the caller. */
  feed(drawn: MlxArray, rows: number): { next: MlxArray; before: MlxArray | undefined } {
    const before = this.#drawn;
    // Removes padding, which other ranks do not have.
    const next = hold(this.#context.group ? slice(drawn, 0, 0, rows) : drawn);
    this.#drawn = next;
    return { next, before };
  }

  /** Frees the arrays of a step that was read. */
  release(owned: Iterable<MlxArray>): void {
    for (const each of owned) {
      if (this.#latest === each) this.#latest = undefined;
      each.free();
    }
  }

  free(): void {
    this.#drawn?.free();
  }

  #fedTokens({ tokens, fed }: StepInputs, size: number): MlxArray {
    const { group, device } = this.#context;
    const known = new Uint32Array(size);
    known.set(tokens);
    if (!fed || !this.#drawn) return device.stage(known);
    const drawn = group ? group.fromFirst(this.#drawn) : this.#drawn;
    const isSame = drawn.shape[0] === size && fed.every((sample, i) => sample === i);
    if (isSame) return drawn;
    const indices = new Int32Array(size).fill(-1);
    indices.set(fed);
    const from = device.stage(indices);
    return where(less(from, 0), device.stage(known), take(drawn, maximum(from, 0)));
  }
}
