// A check of the self-test compares what a device computes with plain arithmetic.
import type { Device, LinearOptions } from "../device/device.ts";
import { evaluate, type MlxArray } from "../mlx/array.ts";
import { astype } from "../mlx/ops.ts";
import { hold } from "../mlx/scope.ts";
import { uniform } from "./tiny-weights.ts";

/** The largest error of a result, and the largest error allowed. */
export type Finding = { what: string; worst: number; most: number };

export type DeviceCheck = {
  name: string;
  /** Runs the check in a scope of its own. Throws if a result has the wrong shape. */
  run(device: Device): readonly Finding[];
};

/** Returns pseudorandom numbers in [-1, 1), determined by the key. */
export function noise(key: string, count: number): Float32Array {
  return uniform(`self-test/${key}`, count);
}

/** Finds the largest absolute error; NaN if only one of two compared numbers is NaN. */
export function compared(
  what: string,
  found: readonly number[],
  expected: readonly number[],
  most: number,
): Finding {
  if (found.length !== expected.length) {
    throw new Error(`${what}: ${found.length} numbers instead of ${expected.length}`);
  }
  let worst = 0;
  for (let i = 0; i < expected.length; i++) {
    const value = expected[i]!;
    const isSame = Object.is(found[i], value) || found[i] === value;
    if (!isSame) worst = Math.max(worst, Math.abs(found[i]! - value)); // NaN stays NaN
  }
  return { what, worst, most };
}

/** Like `compared`, but errors are relative to the largest expected number. */
export function comparedByPart(
  what: string,
  found: readonly number[],
  expected: readonly number[],
  most: number,
): Finding {
  const largest = expected.reduce((highest, value) => Math.max(highest, Math.abs(value)), 0);
  const { worst } = compared(what, found, expected, most);
  return { what, worst: largest === 0 ? worst : worst / largest, most };
}

/** Returns the finding with the largest error relative to its tolerance, and a problem if the error exceeds that. */
export function worstOf(findings: readonly Finding[]): {
  finding: Finding | undefined;
  problem?: string;
} {
  const ratio = ({ worst, most }: Finding) => (worst === 0 ? 0 : worst / most);
  const isClose = ({ worst, most }: Finding) => worst <= most;
  const sorted = findings.toSorted((a, b) => ratio(b) - ratio(a));
  const finding = sorted.find((each) => !isClose(each)) ?? sorted[0];
  if (!finding || isClose(finding)) return { finding };
  const { what, worst, most } = finding;
  const problem =
    most === 0
      ? `${what}: ${worst} wrong`
      : `${what}: off by ${worst.toPrecision(3)}, where ${most.toPrecision(1)} is allowed`;
  return { finding, problem };
}

/** Returns the numbers of an array of any type, in row order. */
export function numbersOf(x: MlxArray): number[] {
  return astype(x, "float32").numbers();
}

/** Keeps arrays alive, as a model keeps its weights, until the block that declares the keeper ends. */
export function keeper(): Pick<LinearOptions, "keepView" | "keepWeight"> & Disposable {
  const kept: MlxArray[] = [];
  const keepView = (view: MlxArray) => {
    evaluate(view);
    kept.push(hold(view));
    return view;
  };
  return {
    keepView,
    keepWeight: (make) => keepView(make()),
    [Symbol.dispose]: () => {
      for (const each of kept) each.free();
    },
  };
}

/** Calls `work` with a keeper, which frees its arrays afterwards. */
export function keeping<T>(work: (keep: ReturnType<typeof keeper>) => T): T {
  using keep = keeper();
  return work(keep);
}
