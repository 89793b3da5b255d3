// Launches on a KV pool are ordered by data. A stand-in for the kernels computes nothing: it notes which launch
// reads and writes which blocks, and where two launches touch the same block there must be a path of data
// from the first to the second, or the host must have waited between them. Metal knows no other order.
import { afterAll, beforeAll, expect, test } from "bun:test";
import type { Device } from "../../../src/device/device.ts";
import type {
  LatentAttention,
  LatentRows,
} from "../../../src/kernels/attention/latent-attention.ts";
import type {
  BlockAttention,
  LayerWork,
  PagedShape,
  Pools,
} from "../../../src/kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../../../src/kv/blocks.ts";
import { array, type MlxArray } from "../../../src/mlx/array.ts";
import { add, slice } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import type { LoadedModel } from "../../../src/model/load.ts";
import { DataFlow, type DataNode } from "../../support/data-flow.ts";
import { deviceOf, plainGpu } from "../../support/devices.ts";
import { makeEngine } from "../../support/engine.ts";
import { useMlx } from "../../support/mlx.ts";
import { makeRandom } from "../../support/random.ts";
import { loadTinyModel, tinyCase } from "../../support/tiny-models.ts";

const models = new Map<string, LoadedModel>();
afterAll(() => {
  for (const model of models.values()) model.free();
});
useMlx();
beforeAll(() => {
  for (const name of ["llama", "gemma3n", "deepseek_v3"])
    models.set(name, loadTinyModel(tinyCase(name), { device: deviceOf("cpu") }));
});

type Launch = { name: string; made: DataNode; reads: Set<number>; writes: Set<number> };

/** Notes launches instead of computing them. */
class NotingAttention implements BlockAttention {
  readonly #shape: PagedShape | undefined;
  readonly #flow: DataFlow;
  /** Of each pool. */
  readonly #launches = new Map<MlxArray, Launch[]>();
  readonly violations: string[] = [];
  readonly counts: Record<string, number> = {};

  constructor(shape: PagedShape | undefined, flow: DataFlow) {
    this.#shape = shape;
    this.#flow = flow;
  }

  decode(qkv: MlxArray, pools: Pools, tables: MlxArray, { sharesKv }: LayerWork): MlxArray {
    const rows = this.#rows(tables);
    const reads = rows.flatMap(({ blocks }) => blocks);
    const writes = sharesKv ? [] : rows.map(({ last }) => last);
    return this.#launch("decode", [qkv, tables], pools, reads, writes, this.#queries(qkv));
  }

  prepare(qkv: MlxArray, pools: Pools, places: MlxArray, { sharesKv }: LayerWork): MlxArray {
    const writes = sharesKv ? [] : this.#written(places);
    return this.#launch("prepare", [qkv, places], pools, [], writes, this.#queries(qkv));
  }

  attend(queries: MlxArray, pools: Pools, tables: MlxArray, places: MlxArray): MlxArray {
    const reads = this.#rows(tables).flatMap(({ blocks }) => blocks);
    return this.#launch("attend", [queries, tables, places], pools, reads, [], add(queries, 0));
  }

  copy(pool: MlxArray, pairs: MlxArray): MlxArray {
    const all = [...this.#flow.hostValues(pairs)];
    const [from, to] = [0, 1].map((part) => all.filter((_, i) => i % 2 === part));
    const done = slice(pairs, 0, 0, 1);
    return this.#note("copy", [pairs], pool, from!, to!, done);
  }

  free(): void {}

  /** Attention over latents, which is noted here too. */
  latents(): LatentAttention {
    const note = (
      name: string,
      rows: LatentRows,
      at: MlxArray[],
      pool: MlxArray,
      writes: number[],
    ) => {
      const reads = this.#rows(at[0]!).flatMap(({ blocks }) => blocks);
      const { absorbed, placed, latents } = rows;
      const taken = [absorbed, placed.rows, latents.rows, ...at];
      return this.#note(name, taken, pool, reads, writes, add(absorbed, 0));
    };
    return {
      groups: 1,
      decode: (rows, pool, tables) => {
        const writes = this.#rows(tables).map(({ last }) => last);
        return note("decode", rows, [tables], pool, writes);
      },
      attend: (rows, pool, tables, places) =>
        note("attend", rows, [tables, places], pool, this.#written(places)),
      copy: (pool, pairs) => this.copy(pool, pairs),
      free() {},
    };
  }

  #written(places: MlxArray): number[] {
    return [...this.#flow.hostValues(places)]
      .filter((_, i) => i % 3 === 1)
      .map((slot) => Math.floor(slot / BLOCK_TOKENS));
  }

  #queries(qkv: MlxArray): MlxArray {
    return slice(qkv, 1, 0, this.#shape!.heads * this.#shape!.headDim);
  }

  #rows(tables: MlxArray): { blocks: number[]; last: number }[] {
    const [width, ...rest] = this.#flow.hostValues(tables);
    return Array.from({ length: rest.length / (1 + width!) }, (_, row) => {
      const at = row * (1 + width!);
      const used = Math.ceil(rest[at]! / BLOCK_TOKENS);
      const blocks = rest.slice(at + 1, at + 1 + used);
      return { blocks, last: blocks.at(-1)! };
    });
  }

  #launch(
    name: string,
    taken: readonly MlxArray[],
    { keys, values }: Pools,
    reads: readonly number[],
    writes: readonly number[],
    made: MlxArray,
  ): MlxArray {
    for (const pool of [keys, values]) this.#note(name, taken, pool, reads, writes, made);
    return made;
  }

  #note(
    name: string,
    taken: readonly MlxArray[],
    pool: MlxArray,
    reads: readonly number[],
    writes: readonly number[],
    made: MlxArray,
  ): MlxArray {
    const flow = this.#flow;
    const inputs = taken.map((each) => flow.node(each));
    const own = { name, made: flow.node(made), reads: new Set(reads), writes: new Set(writes) };
    const before = (this.#launches.get(pool) ?? []).filter((each) => !each.made.isDone);
    for (const each of before) {
      const meets = conflict(each, own);
      if (meets !== undefined && !flow.isAfter(each.made, inputs)) {
        this.violations.push(`${name} touches block ${meets} beside ${each.name}`);
      }
    }
    this.#launches.set(pool, [...before, own]);
    this.counts[name] = (this.counts[name] ?? 0) + 1;
    // Launches that were not read yet when another came.
    if (before.length > 0) this.counts.overlapping = (this.counts.overlapping ?? 0) + 1;
    return made;
  }
}

/** A block that one of them writes and the other touches. */
function conflict(a: Launch, b: Launch): number | undefined {
  const touches = ({ reads, writes }: Launch, block: number) =>
    reads.has(block) || writes.has(block);
  return (
    [...a.writes].find((block) => touches(b, block)) ??
    [...b.writes].find((block) => touches(a, block))
  );
}

/** Random requests with forks, chunks, prefix hits and preemptions, steps overlapping. */
function run(
  name: string,
  change: (device: Device) => Device = (device) => device,
): NotingAttention {
  const flow = new DataFlow();
  try {
    const model = models.get(name)!;
    const attention = new NotingAttention(model.states.kvs[0], flow);
    const device = change({
      ...plainGpu(),
      attention: () => attention,
      latentAttention: () => attention.latents(),
    });
    const engine = makeEngine(model, { device, maxBatch: 6, blocks: 14, tokenBudget: 48 });
    const random = makeRandom(11);
    const shared = Array.from({ length: 64 }, () => random.below(200));
    for (let i = 0; i < 40; i++) {
      const rest = Array.from({ length: 1 + random.below(60) }, () => random.below(200));
      const prompt = Uint32Array.from(random.chance(0.5) ? [...shared, ...rest] : rest);
      const sampling = { temperature: random.chance(0.5) ? 0 : 1, seed: i };
      const penalties = random.chance(0.2) ? { presencePenalty: 1 } : {};
      const n = random.chance(0.5) ? 2 + random.below(2) : 1;
      const maxTokens = 4 + random.below(40);
      engine.submit({ prompt, maxTokens, n, sampling: { ...sampling, ...penalties } });
      for (let steps = random.below(6); steps > 0; steps--) engine.step();
    }
    engine.run();
    expect(engine.engine.scheduler.preemptions).toBeGreaterThan(0);
    engine.free();
    return attention;
  } finally {
    flow.stop();
  }
}

test.each([
  ["llama", 20, ["decode", "prepare", "attend", "copy", "overlapping"]],
  // Some layers read what others have written.
  ["gemma3n", 20, ["decode", "prepare", "attend", "copy", "overlapping"]],
  // One pool a layer instead of two.
  ["deepseek_v3", 10, ["decode", "attend", "copy", "overlapping"]],
] as const)(
  "%s: every launch on a block follows by data from the last",
  (model, least, names) => {
    const { violations, counts } = run(model);
    expect(violations).toEqual([]);
    // A run in which these never happened would prove nothing.
    for (const name of names) {
      expect([name, counts[name] ?? 0]).toEqual([name, expect.any(Number)]);
      expect(counts[name]).toBeGreaterThan(least);
    }
  },
  60_000,
);

test.each([
  ["llama", "prepare"],
  ["deepseek_v3", "attend"],
])("%s: a device that orders nothing is found out, in copies and in prompts", (model, writer) => {
  const { violations } = run(model, (device) => ({ ...device, after: (integers) => integers }));
  const names = new Set(violations.map((each) => each.split(" ")[0]));
  expect(names).toContain("copy");
  expect(names).toContain(writer);
});

test("an array that comes from the host alone follows nothing, and one made of another does", () => {
  using _ = new Scope();
  const flow = new DataFlow();
  const x = array(Int32Array.of(1, 2));
  const y = add(x, 1);
  const z = array(Int32Array.of(3));
  expect(flow.isAfter(flow.node(x), [flow.node(y)])).toBe(true);
  expect(flow.isAfter(flow.node(y), [flow.node(z)])).toBe(false);
  y.evaluate();
  expect(flow.isAfter(flow.node(y), [flow.node(z)])).toBe(true);
  flow.stop();
});
