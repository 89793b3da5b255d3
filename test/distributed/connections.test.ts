// What connects ranks: the ways there are, and what memory that they share makes.
import { expect, test } from "bun:test";
import { startLocalRanks, startRanks } from "../../src/cli/ranks.ts";
import { loadSettings } from "../../src/config/load.ts";
import { makeLogger } from "../../src/log.ts";
import { connectionsOf } from "../../src/ranks/connections.ts";
import { useMlx } from "../support/mlx.ts";
import { runCollectives } from "../support/rank-processes.ts";

useMlx();

test("one rank is no ranks: the engine computes as it does without", async () => {
  expect(await startLocalRanks(1)).toBeUndefined();
  const { settings } = loadSettings(["--ranks", "1"], {});
  expect(
    await startRanks(settings, makeLogger({ level: "error", format: "json" })),
  ).toBeUndefined();
});

test.each([
  ["cuda", "tensor", true, "nccl"],
  ["cuda", "tensor", false, "nccl"],
  ["cuda", "pipeline", true, "shared"],
  ["cuda", "pipeline", false, "ring"],
  ["metal", "tensor", false, "ring"],
  ["cpu", "tensor", true, "shared"],
  ["cpu", "pipeline", true, "shared"],
  ["cpu", "tensor", false, "ring"],
] as const)(
  "ranks on %s, %s, are connected as their places allow",
  (backend, parallel, areLocal, expected) => {
    expect(connectionsOf({ backend, parallel, areLocal })).toBe(expected);
  },
);

test.each([2, 3, 4])(
  "%i ranks that share memory add up, gather and send",
  async (size) => {
    const results = await runCollectives(size, "shared", 30_000);
    expect(results.filter(({ isRight }) => !isRight)).toEqual([]);
    expect(results).toHaveLength(28 * size);
  },
  60_000,
);
