// Implements tensor parallelism: which part of an axis this rank has, the stored tensors cut to that part, and the
// collectives that combine the parts' results. Without a group every part is the whole.
import type { Linear } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import type { Group } from "../../mlx/distributed.ts";
import {
  astype,
  clip,
  concatenate,
  expandDims,
  greaterEqual,
  less,
  logicalAnd,
  multiply,
  reshape,
  slice,
  subtract,
  swapAxes,
  zeros,
} from "../../mlx/ops.ts";
import {
  columnsOf,
  columnsThatTake,
  orderedRuns,
  type RowRun,
} from "../checkpoint/stored/arrangement.ts";
import {
  countOf,
  type Extent,
  evenSliceOf,
  leastCommonMultiple,
  type Slice,
  sliceOf,
  sumOf,
  wholeOf,
} from "./extents.ts";
import { type StoredMatrices, wordsOf } from "./stored-matrices.ts";
import type { StoredTensors } from "./stored-tensors.ts";

export type Division = {
  unit?: number;
  inputOf?: readonly string[];
  /** Replaces the usual division: returns a rank's part in multiples of `unit`, or the whole size on all ranks. */
  sliceOf?: (unit: number, ranks: { rank: number; size: number }) => Extent;
};

/** Sums the partial results of all ranks. */
export type Total = (part: MlxArray) => MlxArray;

type Lookup = (tokens: MlxArray) => MlxArray;

export class RankParts {
  readonly group: Group | undefined;
  readonly #stored: StoredTensors;
  readonly #matrices: StoredMatrices;

  constructor(group: Group | undefined, stored: StoredTensors, matrices: StoredMatrices) {
    this.group = group;
    this.#stored = stored;
    this.#matrices = matrices;
  }

  /**
   * Returns this rank's part of an axis, in multiples of `unit`, or the whole axis if it cannot be divided. `inputOf`
   * names matrices whose input is this axis, which must not be cut inside a quantization group.
   */
  divide(size: number, { unit = 1, inputOf = [], ...division }: Division = {}): Extent {
    const { group } = this;
    if (!group) return size;
    const units = inputOf.map((name) => this.#matrices.inputUnit(name, size));
    const each = leastCommonMultiple(unit, ...units);
    const parts = Array.from({ length: group.size }, (_, rank) => {
      const ranks = { rank, size: group.size };
      return division.sliceOf?.(each, ranks) ?? sliceOf(size, each, ranks);
    });
    const canDivide = inputOf.every((name, i) => this.#hasWholeGroups(name, parts, units[i]!));
    return canDivide ? parts[group.rank]! : size;
  }

  /** Returns this rank's part of the vocabulary. */
  vocabulary(size: number): Extent {
    return this.group ? evenSliceOf(size, this.group) : size;
  }

  /** Returns a function that sums partial results over ranks; undefined if each rank has the whole axis. */
  totals(input: Extent): Total | undefined {
    const { group } = this;
    return group && typeof input !== "number" ? (part) => group.allSum(part) : undefined;
  }

  /** Reshapes a tensor, and cuts its first axis to this rank's parts. Returns the shape of the result. */
  cut(name: string, parts: readonly Extent[], rest: readonly number[]): number[] {
    const whole = sumOf(parts.map(wholeOf));
    const shape = [sumOf(parts.map(countOf)), ...rest];
    this.#stored.flatten(name, [whole, ...rest]);
    if (parts.some((each) => typeof each !== "number")) {
      this.#stored.expect(name, [whole, ...rest]);
      const rows = { rows: whole, runs: runsIn(parts, 0), shape };
      this.#stored.cut(name, (stored) => orderedRuns(stored, rows));
    }
    return shape;
  }

  /** Cuts matrices (...leading, outputs, ...rest) to this rank's outputs, and their last axis to its inputs. */
  cutMatrix(
    name: string,
    leading: readonly number[],
    outputs: readonly Extent[],
    rest: readonly Extent[],
  ): void {
    const inputs = rest.at(-1)!;
    if ([...outputs, inputs].every((each) => typeof each === "number")) return;
    const rows = sumOf(outputs.map(wholeOf));
    this.#matrices.check(name, [...leading, rows, ...rest.map(wholeOf)]);
    const count = leading.reduce((a, b) => a * b, 1);
    const runs = Array.from({ length: count }, (_, i) => runsIn(outputs, i * rows)).flat();
    const own = sumOf(outputs.map(countOf));
    const columns = typeof inputs === "number" ? undefined : this.#columns(name, inputs);
    for (const kind of this.#matrices.kindsOf(name)) {
      this.#stored.cut(`${name}.${kind}`, (stored) => {
        const shape = [...leading, own, ...stored.shape.slice(leading.length + 1)];
        const some =
          own === rows ? stored : orderedRuns(stored, { rows: count * rows, runs, shape });
        return kind === "bias" || !columns ? some : columnsOf(some, columns);
      });
    }
  }

  /** Looks up tokens (T) in a divided embedding. Tokens that other ranks have give 0 here; the ranks' sum has all. */
  lookup(rows: Lookup, own: Extent): Lookup {
    const { group } = this;
    if (!group || typeof own === "number") return rows;
    return (tokens) => {
      const places = subtract(astype(tokens, "int32"), own.first);
      const isOwn = logicalAnd(greaterEqual(places, 0), less(places, own.count));
      const found = rows(clip(places, 0, own.count - 1)); // (T, D)
      return group.allSum(multiply(found, astype(expandDims(isOwn, -1), found.dtype)));
    };
  }

  /** Gathers logits (T, own part) -> (T, vocabulary) on every rank. The last rank's part may be smaller. */
  logits(product: Linear, vocabulary: Extent): Linear {
    const { group } = this;
    if (!group || typeof vocabulary === "number") return product;
    const { count, of } = vocabulary;
    const most = Math.ceil(of / group.size);
    return (x, fused) => {
      const own = product(x, fused);
      const rows = own.shape[0]!;
      const rest = most - count;
      const padded = rest > 0 ? concatenate([own, zeros([rows, rest], own.dtype)], -1) : own;
      const all = reshape(group.allGather(padded), [group.size, rows, most]);
      const whole = reshape(swapAxes(all, 0, 1), [rows, group.size * most]);
      return whole.shape[1] === of ? whole : slice(whole, 1, 0, of);
    };
  }

  /**
   * Returns the stored columns that multiply a slice of the input features. If the file reorders columns, the
   * recorded order is cut to the slice too.
   */
  #columns(name: string, inputs: Slice): { runs: readonly RowRun[]; of: number } {
    const { first, count, of } = inputs;
    const order = this.#matrices.inputOrder(name);
    if (!order) return { runs: [inputs], of };
    const isOwn = (input: number) => input >= first && input < first + count;
    const own = order.filter(isOwn).map((input) => input - first);
    this.#stored.cut(`${name}.input_order`, (stored) => wordsOf(stored.name, own));
    return { runs: columnsThatTake(order, inputs), of };
  }

  /** Whether each part's columns are whole quantization groups. Always so in a matrix without input order. */
  #hasWholeGroups(name: string, parts: readonly Extent[], unit: number): boolean {
    const order = this.#matrices.inputOrder(name);
    if (!order) return true;
    const isWhole = ({ first, count }: RowRun) => first % unit === 0 && count % unit === 0;
    return parts.every(
      (part) => typeof part === "number" || columnsThatTake(order, part).every(isWhole),
    );
  }
}

/** Returns this rank's rows of each part. The parts are stored one below the other, from row `start` on. */
function runsIn(parts: readonly Extent[], start: number): RowRun[] {
  let at = start;
  return parts.map((part) => {
    const first = at + (typeof part === "number" ? 0 : part.first);
    at += wholeOf(part);
    return { first, count: countOf(part) };
  });
}
