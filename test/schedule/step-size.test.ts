import { describe, expect, test } from "bun:test";
import { StepSizes } from "../../src/schedule/step-size.ts";

const TARGET_MS = 250;

/** Full steps of a device that takes so long for a token, and as long for each step. */
function run(sizes: StepSizes, steps: number, msPerToken: number, msPerStep = 0): number[] {
  return Array.from({ length: steps }, () => {
    const ms = msPerStep + sizes.plain * msPerToken;
    sizes.learn({ plain: sizes.plain, scored: 0 }, ms);
    return ms;
  });
}

const steady = (msPerToken: number, msPerStep?: number) => {
  const sizes = new StepSizes(512, TARGET_MS);
  run(sizes, 20, msPerToken, msPerStep);
  return sizes.plain;
};

describe("the size of a step", () => {
  test("starts small, and grows by doubling to all that the budget could use", () => {
    const sizes = new StepSizes(512, TARGET_MS);
    const found = Array.from({ length: 8 }, () => {
      run(sizes, 1, 0.01);
      return sizes.plain;
    });
    expect(found).toEqual([128, 256, 512, 1024, 2048, 4096, 4096, 4096]);
  });

  test("is what takes less than the target, and more than a third of it", () => {
    for (const msPerToken of [0.3, 0.5, 1, 1.7, 2, 3, 5]) {
      const ms = steady(msPerToken) * msPerToken;
      expect(ms).toBeLessThanOrEqual(TARGET_MS);
      expect(ms).toBeGreaterThan(TARGET_MS / 3);
    }
  });

  test("follows the target that it is given: on a Mac no step holds the screen for longer", () => {
    for (const msPerToken of [0.1, 0.3, 1, 3]) {
      const sizes = new StepSizes(512, 100);
      const taken = run(sizes, 40, msPerToken);
      // The first step is one that a slow device cannot know of.
      for (const ms of taken.slice(1)) expect(ms).toBeLessThanOrEqual(100);
      expect(Math.max(...taken.slice(-10))).toBeGreaterThan(100 / 3);
    }
  });

  test("is a block at least, however slow the device", () => {
    expect(steady(1000)).toBe(32);
    expect(steady(1, 10_000)).toBe(32);
  });

  test("does not waver between two sizes", () => {
    for (const msPerToken of [0.9, 1.3, 1.9, 3.1]) {
      const sizes = new StepSizes(512, TARGET_MS);
      run(sizes, 20, msPerToken);
      const found = new Set(run(sizes, 20, msPerToken));
      expect(found.size).toBe(1);
    }
  });

  test("shrinks at once when a step takes longer, and is back after a few", () => {
    const sizes = new StepSizes(512, TARGET_MS);
    run(sizes, 20, 1);
    const before = sizes.plain;
    sizes.learn({ plain: before, scored: 0 }, 4 * TARGET_MS);
    expect(sizes.plain).toBeLessThanOrEqual(before / 4);
    run(sizes, 3, 1);
    expect(sizes.plain).toBe(before);
  });

  test("learns nothing from steps without prompts, nor from short prompts beside many streams", () => {
    const sizes = new StepSizes(512, TARGET_MS);
    run(sizes, 20, 1);
    const before = sizes.plain;
    sizes.learn({ plain: 0, scored: 0 }, 10_000);
    sizes.learn({ plain: 4, scored: 0 }, TARGET_MS - 1);
    expect(sizes.plain).toBe(before);
  });

  test("of prompts that are scored is learned by itself", () => {
    const sizes = new StepSizes(512, TARGET_MS);
    run(sizes, 20, 1);
    const before = sizes.plain;
    for (let i = 0; i < 20; i++) sizes.learn({ plain: 0, scored: sizes.scored }, 5 * sizes.scored);
    expect([sizes.plain, sizes.scored]).toEqual([before, 32]);
    sizes.learn({ plain: 1, scored: 32 }, 2 * TARGET_MS);
    expect(sizes.plain).toBe(before);
  });
});
