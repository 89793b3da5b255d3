// Layers that begin while others are built: what they make is freed when nothing takes it any more, and not before.
import { expect, test } from "bun:test";
import { array, liveArrays, type MlxArray } from "../../../src/mlx/array.ts";
import { add } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { BegunLayers } from "../../../src/model/contract/begun-layers.ts";
import { useMlx } from "../../support/mlx.ts";

useMlx();

/** What the layers make in the end of [1, 2]. */
function madeBy(...layers: readonly ((h: MlxArray) => MlxArray)[]): number[] {
  using _ = new Scope();
  using begun = new BegunLayers();
  let h = array([1, 2]);
  for (const layer of layers) h = begun.add(() => layer(h));
  return h.numbers();
}

const plusOne = (h: MlxArray) => add(h, 1);

test("layers take what the one before has made", () => {
  const before = liveArrays();
  expect(madeBy(...Array(9).fill(plusOne))).toEqual([10, 11]);
  expect(liveArrays()).toBe(before);
});

test("layers that compute nothing hand on what one before them has made", () => {
  const before = liveArrays();
  const idle = Array(9).fill((h: MlxArray) => h);
  expect(madeBy(...idle, plusOne, ...idle, plusOne, ...idle)).toEqual([3, 4]);
  expect(liveArrays()).toBe(before);
});

test("a layer that cannot be built leaves nothing behind", () => {
  const before = liveArrays();
  const fails = (h: MlxArray): MlxArray => {
    add(h, 1);
    throw new Error("no layer");
  };
  for (const built of [0, 1, 4]) {
    expect(() => madeBy(...Array(built).fill(plusOne), fails)).toThrow("no layer");
    expect(liveArrays()).toBe(before);
  }
});
