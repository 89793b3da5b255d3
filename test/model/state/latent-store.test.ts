import { expect, test } from "bun:test";
import type {
  LatentAttention,
  LatentRows,
} from "../../../src/kernels/attention/latent-attention.ts";
import { packTiles, type TileSize } from "../../../src/kernels/attention/paged-attention.ts";
import type { MlxArray } from "../../../src/mlx/array.ts";
import { zeros } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { LayerStates } from "../../../src/model/contract/states.ts";
import { PagedKvStore } from "../../../src/model/state/paged-kv-store.ts";
import { plainGpu } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";

useMlx();

const shape = { heads: 16, latent: 64, rotary: 16 };
const row = (start: number, count: number) => ({ start, count, tables: [[0, 1, 2, 3]] });

/** A store of two layers, and what their attention is given. */
function noting(tile: TileSize | undefined) {
  const tiles: (MlxArray | undefined)[] = [];
  const splits: (number | undefined)[] = [];
  const attention: LatentAttention = {
    groups: 2,
    tile,
    decode: ({ absorbed }, _pool, _tables, _work, count) => {
      splits.push(count);
      return absorbed;
    },
    attend: ({ absorbed }, _pool, _tables, _places, _work, own) => {
      tiles.push(own);
      return absorbed;
    },
    copy: (_, pairs) => pairs,
    free() {},
  };
  const states = new LayerStates();
  const layers = [states.latent(shape), states.latent(shape)];
  const device = { ...plainGpu(), latentAttention: () => attention };
  const store = new PagedKvStore(device, states, [4], "float32");
  const attend = (rows: Parameters<PagedKvStore["begin"]>[0]) => {
    const tokens = rows.reduce((sum, { count }) => sum + count, 0);
    const all = zeros([tokens, 80]);
    const given: LatentRows = {
      absorbed: zeros([tokens, shape.heads * shape.latent]),
      placed: { rows: all, first: 0, stride: 1 },
      latents: { rows: all, first: 0 },
    };
    const weight = zeros([shape.latent]);
    const norm = Object.assign((x: MlxArray) => x, { weight, eps: 1 });
    const step = store.begin(rows);
    for (const layer of layers) step.attendLatent!(layer, given, { scale: 1, norm });
  };
  return { tiles, splits, attend, free: () => store.free() };
}

test("tokens of prompts come in the tiles that the device attends with, the same for all layers", () => {
  using _ = new Scope();
  const tile = { most: 4, perToken: 1 };
  const { attend, tiles, free } = noting(tile);
  const rows = [row(0, 6), row(40, 1)];
  attend(rows);
  expect([...tiles[0]!.numbers()]).toEqual([...packTiles(rows, tile)]);
  expect(tiles.length).toBe(2);
  expect(tiles[1]).toBe(tiles[0]!);
  free();
});

test("a device that attends token by token is given none", () => {
  using _ = new Scope();
  const { attend, tiles, free } = noting(undefined);
  attend([row(0, 6)]);
  expect(tiles).toEqual([undefined, undefined]);
  free();
});

test("sequences are split by their length and by how many groups there are", () => {
  using _ = new Scope();
  const { attend, splits, free } = noting({ most: 4, perToken: 1 });
  attend([row(100, 1)]);
  attend([row(1023, 1)]);
  attend(Array.from({ length: 32 }, () => row(1023, 1)));
  expect(splits).toEqual([8, 8, 32, 32, 4, 4]);
  free();
});
