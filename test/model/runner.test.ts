// The runner as on a GPU, with plain arithmetic in the place of the kernels.
import { afterAll, beforeAll, expect, test } from "bun:test";
import type { BlockAttention } from "../../src/kernels/paged-attention.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import type { MlxArray } from "../../src/mlx/array.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { PagedKvStore } from "../../src/model/paged-kv-store.ts";
import { Runner } from "../../src/model/runner.ts";
import { deviceOf, plainGpu } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { PlainAttention } from "../support/plain-attention.ts";
import { loadTinyModel, tinyCase } from "../support/tiny-models.ts";

let model: LoadedModel;
afterAll(() => model.free());
useMlx();
beforeAll(() => {
  model = loadTinyModel(tinyCase("llama"), { device: deviceOf("cpu") });
});

/** How many rows are decoded, in how many parts, and the blocks that they read and write. */
class Watched extends PlainAttention {
  readonly decoded: string[] = [];
  readonly blocks = new Set<number>();

  override decode(...args: Parameters<BlockAttention["decode"]>): MlxArray {
    const [qkv, pools, tables, work, splits = 1] = args;
    this.decoded.push(`${qkv.shape[0]} rows in ${splits}`);
    const [width, ...rows] = tables.numbers() as [number, ...number[]];
    for (let at = 0; at < rows.length; at += 1 + width) {
      const used = Math.ceil(rows[at]! / BLOCK_TOKENS);
      for (const block of rows.slice(at + 1, at + 1 + used)) this.blocks.add(block);
    }
    return super.decode(qkv, pools, tables, work);
  }
}

test("warming up runs each batch size with every number of splits, on no block of the pool", () => {
  const attention = new Watched(model.shape);
  const device = { ...plainGpu(), attention: () => attention };
  const store = new PagedKvStore(device, model.shape, 4, model.dtype);
  const runner = new Runner(device, model, store);
  runner.warmUp(3, 2048);
  const { layers, kvHeads } = model.shape;
  expect(kvHeads).toBe(2);
  const ways = [1, 2, 3].flatMap((rows) => [1, 2, 4, 8].map((parts) => `${rows} rows in ${parts}`));
  const counts = ways.map((way) => attention.decoded.filter((each) => each === way).length);
  expect(counts).toEqual(ways.map(() => 2 * layers));
  expect(attention.decoded).toHaveLength(ways.length * 2 * layers);
  expect([...attention.blocks]).toEqual([store.scratch]);
  runner.free();
  store.free();
});
