import { expect, test } from "bun:test";
import { join } from "node:path";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { tinyCase, writeTinyModel } from "../support/tiny-models.ts";

const folder = temporaryFolder();
useMlx();

const MIB = 2 ** 20;

test("500 requests in a row, and 10,000 tokens of one, leave handles and memory as they were", () => {
  writeTinyModel(folder, tinyCase("llama"));
  // In a process of its own: what other tests have left to the garbage collector would show here.
  const program = join(import.meta.dir, "../support/engine-leaks.ts");
  const { stdout, stderr } = Bun.spawnSync([process.execPath, program, folder], {
    // Products this small are slower on two threads than on one.
    env: { ...process.env, OPENBLAS_NUM_THREADS: "1" },
  });
  expect(stderr.toString()).toBe("");
  const { afterMany, afterLong, tokens, end } = JSON.parse(stdout.toString());
  expect([afterMany.handles, afterLong.handles, end]).toEqual([0, 0, 0]);
  expect(tokens).toBe(10_000);
  expect(afterMany.active).toBeLessThanOrEqual(0);
  expect(afterLong.active).toBeLessThanOrEqual(0);
  expect(afterMany.resident).toBeLessThan(24 * MIB);
  expect(afterLong.resident).toBeLessThan(32 * MIB);
}, 180_000);
