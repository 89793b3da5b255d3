import { expect, test } from "bun:test";
import { join } from "node:path";
import { activeMemory } from "../../src/mlx/memory.ts";
import { zeros } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();
const MIB = 2 ** 20;

test("active memory rises with an array and falls when its scope closes", async () => {
  const before = activeMemory();
  {
    using _ = new Scope();
    zeros([4 * MIB]).evaluate();
    expect(activeMemory()).toBeGreaterThanOrEqual(before + 16 * MIB);
  }
  // A GPU releases a buffer when the work that used it is done.
  while (activeMemory() !== before) await Bun.sleep(1);
});

test("a million operations leave no handle and no memory behind", () => {
  // In a process of its own: what other tests have left to the garbage collector would show here.
  const program = join(import.meta.dir, "../support/million-operations.ts");
  const { stdout } = Bun.spawnSync([process.execPath, program]);
  const left = JSON.parse(stdout.toString());
  expect(left.handles).toBe(0);
  // One leaked handle an operation would be 100 MB and more.
  expect(left.bytes).toBeLessThan(16 * MIB);
}, 30_000);
