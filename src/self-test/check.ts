// A check of the self-test: what a device computes, beside plain arithmetic.
import type { Device, LinearOptions } from "../device/device.ts";
import { evaluate, type MlxArray } from "../mlx/array.ts";
import { astype } from "../mlx/ops.ts";
import { hold } from "../mlx/scope.ts";
import { uniform } from "./tiny-weights.ts";

/** By how much numbers differ from what they should be, and by how much they may. */
export type Finding = { what: string; worst: number; most: number };

export type DeviceCheck = {
  name: string;
  /** In a scope of its own. Throws where what was computed has another shape. */
  run(device: Device): readonly Finding[];
};

/** Numbers in [-1, 1) that are the same every time. */
export function noise(key: string, count: number): Float32Array {
  return uniform(`self-test/${key}`, count);
}

/** The largest difference; NaN where a number is NaN that should not be. */
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

/** As `compared`, as a part of the largest number that is expected. */
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

/** The finding that is furthest from what is allowed, and what is wrong with it. */
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

/** Of any type, in row order. */
export function numbersOf(x: MlxArray): number[] {
  return astype(x, "float32").numbers();
}

/** Keeps arrays as weights are kept, until the work is done. */
export function keeping<T>(work: (keep: Pick<LinearOptions, "keepView" | "keepWeight">) => T): T {
  const kept: MlxArray[] = [];
  const keepView = (view: MlxArray) => {
    evaluate(view);
    kept.push(hold(view));
    return view;
  };
  try {
    return work({ keepView, keepWeight: (make) => keepView(make()) });
  } finally {
    for (const each of kept) each.free();
  }
}
