// Launches in random orders, bound only by what Metal sees (random-order.ts): all cases of parity get the same tokens,
// and each dependency that is taken out is missed. `npm run -s order` runs them with more seeds.
import { afterAll, describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Glob } from "bun";
import { symbols } from "../../ffi/symbols.ts";
import { useMlx } from "../support/mlx.ts";
import {
  MOST_SEEDS,
  mutations,
  OrderCases,
  orderCases,
  seedThatMisses,
} from "../support/order-cases.ts";
import { plainKernels } from "../support/plain-kernels.ts";
import { orderings } from "../support/random-order.ts";

const cases = new OrderCases();
afterAll(() => cases.free());
useMlx();

describe("in any order", () => {
  test.each(orderCases.map((each, i) => [each.model, each.feature, 1 + (i % 10)] as const))(
    "%s gets the same tokens: %s, seed %d",
    (model, feature, seed) => {
      expect(cases.run({ model, feature }, seed).wrong).toBe(0);
    },
    60_000,
  );

  test("each ordering, and each kernel that writes into its inputs, is taken out by a mutation", () => {
    const writers = Object.keys(plainKernels).filter(
      (name) => plainKernels[name]!.writes.length > 0,
    );
    const out = mutations.map(({ mutation }) =>
      "after" in mutation ? mutation.after : mutation.kernel,
    );
    expect([...new Set(out)].sort()).toEqual([...orderings, ...writers].sort());
  });

  test("there are as many calls of a device's `after` as there are orderings", () => {
    // A path of data that MLX's Metal backend would not see.
    expect(symbols).not.toHaveProperty("mlx_depends");
    const root = join(import.meta.dir, "../..");
    const files = [...new Glob("src/{kernels,model,worker}/**/*.ts").scanSync(root)];
    const code = files.map((file) => readFileSync(join(root, file), "utf8")).join("\n");
    expect(code.replace(/^\s*(\/\/|\*|\/\*).*$/gm, "").match(/\bafter\(\w+, /g)?.length).toBe(
      orderings.length,
    );
  });
});

test.each(
  mutations.map(({ mutation, of }) => [JSON.stringify(mutation), of.model, mutation, of] as const),
)(
  `without %s, %s is found out within ${MOST_SEEDS} seeds`,
  (_name, _model, mutation, of) => {
    expect(seedThatMisses(cases, { mutation, of })).toBeDefined();
  },
  120_000,
);

test("what a step writes that could not be drawn is not written into the next sequence's blocks", () => {
  for (let seed = 1; seed <= MOST_SEEDS; seed++) expect(cases.runUndrawn(seed)).toBe(true);
}, 60_000);
