// Paged attention with our own kernels. Pools of keys and values are inputs that kernels write in place, so MLX never
// copies them. It orders launches only if one takes the other's output. Each input costs host time, so related data
// is packed into one array.
import { array, type MlxArray } from "../../mlx/array.ts";
import { type Dtype, isHalf } from "../../mlx/dtype.ts";
import { type KernelLaunch, type Language, type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { astype, concatenate, zeros } from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import { KernelCache, KernelCaches } from "../host/kernel-cache.ts";
import { MAP_WORDS } from "../host/source.ts";
import type { PendingProduct, PromptHeads } from "../product/prompt-heads.ts";
import attendBody from "./attend.c" with { type: "text" };
import chunksBody from "./chunks.c" with { type: "text" };
import copyBody from "./copy.c" with { type: "text" };
import decodeBody from "./decode.c" with { type: "text" };
import { attentionHeaders } from "./headers.ts";
import mergeBody from "./merge.c" with { type: "text" };
import prepareBody from "./prepare.c" with { type: "text" };
import warpgroupChunksBody from "./warpgroup-chunks.c" with { type: "text" };

export type PagedShape = { heads: number; kvHeads: number; headDim: number };

/** A layer's pools of keys and values, (blocks, kvHeads, 32, D) each. */
export type Pools = { keys: MlxArray; values: MlxArray };

type RopeNumbers = { wavelengths: MlxArray; magnitude: number };

/** RoPE parameters of all tokens of sequences longer than `beyond`. */
type LongRope = RopeNumbers & { beyond: number };

/** A layer's attention parameters. A layer always passes the same object, because they are packed once per object. */
export type LayerWork = {
  norms?:
    | { query: MlxArray; key?: MlxArray | undefined; value?: MlxArray | undefined; eps: number }
    | undefined;
  /** Whether the layer attends to the keys and values of an earlier layer; qkv then has only queries. */
  sharesKv?: boolean | undefined;
  rope?: (RopeNumbers & { dims: number; long?: LongRope | undefined }) | undefined;
  scale: number;
  window?: number | undefined;
  /** Whether tokens attend within chunks of `window` tokens (Llama 4) instead of a sliding window. */
  chunked?: boolean | undefined;
  sinks?: MlxArray | undefined;
  softcap?: number | undefined;
};

/** Attention of prompt chunks, by tiles of consecutive tokens of a sequence. */
export type ChunkAttention = {
  readonly tile: TileSize;
  /** Attends with queries (T, heads * D), each to its sequence's KV blocks up to its position -> (T, heads * D). */
  attend(
    queries: MlxArray,
    pools: Pools,
    tables: MlxArray,
    places: MlxArray,
    tiles: MlxArray,
    work: LayerWork,
  ): MlxArray;
};

/** Paged attention as the KV store calls it: implemented by kernels, or in tests by plain arithmetic. */
export interface BlockAttention {
  /**
   * Decodes the newest token of each sequence: qkv (B, (heads + 2 kvHeads) * D) -> (B, heads * D). Its key and value
   * are written to the sequence's last KV block. With `sharesKv`, qkv has only queries, here and in `prepare`.
   */
  decode(qkv: MlxArray, pools: Pools, tables: MlxArray, work: LayerWork, splits?: number): MlxArray;
  /**
   * Applies norm and RoPE to qkv (T, ...), writes keys and values to their KV slots and returns queries (T, heads *
   * D). With `lastQueries` it may leave out all but each sequence's last query.
   */
  prepare(
    qkv: MlxArray | PendingProduct,
    pools: Pools,
    places: MlxArray,
    work: LayerWork,
    lastQueries?: boolean,
  ): MlxArray;
  /** Attends with queries (T, heads * D), each to its sequence's KV blocks up to its position -> (T, heads * D). */
  attend(
    queries: MlxArray,
    pools: Pools,
    tables: MlxArray,
    places: MlxArray,
    work: LayerWork,
  ): MlxArray;
  /** Limits of decoding in clusters (no merge launch): most `splits` per sequence, most CTAs at once (`groups`). */
  readonly clustered?: { splits: number; groups: number } | undefined;
  /** Attention by tiles of tokens; undefined if there is no kernel for it. */
  readonly chunks?: ChunkAttention | undefined;
  /** On evaluation copies KV blocks in a pool, given pairs (C * 2) of source and destination block. */
  copy(pool: MlxArray, pairs: MlxArray): MlxArray;
  free(): void;
}

/** Packs block tables: their width, then each sequence's length and blocks, padded to the width. */
export function packTables(
  rows: readonly { length: number; blocks: readonly number[] }[],
  width: number,
  scratch = 0,
): Int32Array {
  const packed = new Int32Array(1 + rows.length * (1 + width));
  packed[0] = width;
  for (const [row, { length, blocks }] of rows.entries()) {
    const at = 1 + row * (1 + width);
    packed[at] = length;
    // Replaces released blocks by the scratch block, because kernels may load them, though none attends to them.
    for (let i = 0; i < blocks.length; i++)
      packed[at + 1 + i] = blocks[i]! < 0 ? scratch : blocks[i]!;
  }
  return packed;
}

/** A token's position, KV slot, and row of the block tables. `isLong`: its sequence uses `LongRope`. */
export type Place = { position: number; slot: number; row: number; isLong?: boolean | undefined };

/** Packs three integers per token: position, KV slot (bitwise inverted if `isLong`), row of the block tables. */
export function packPlaces(tokens: readonly Place[]): Int32Array {
  return Int32Array.from(
    tokens.flatMap(({ position, slot, row, isLong }) => [position, isLong ? ~slot : slot, row]),
  );
}

/** Maximum rows per tile, and rows per token: query heads per KV head, or 1 if a row is a token. */
export type TileSize = { readonly most: number; readonly perToken: number };

/**
 * Packs the first row and the number of rows of each tile, longest context first, so that the slowest tiles do not
 * start last. Pads with empty tiles to a multiple of 8, because each distinct tile count needs a configuration.
 */
export function packTiles(
  chunks: readonly { start: number; count: number }[],
  { most, perToken }: TileSize,
  atLeast = 0,
): Int32Array {
  const tiles: { first: number; count: number; seen: number }[] = [];
  let at = 0;
  for (const chunk of chunks) {
    const [start, all] = [chunk.start * perToken, chunk.count * perToken];
    for (let i = 0; i < all; i += most) {
      const count = Math.min(most, all - i);
      tiles.push({ first: at + i, count, seen: start + i + count });
    }
    at += all;
  }
  tiles.sort((a, b) => b.seen - a.seen);
  const packed = new Int32Array(2 * 8 * Math.ceil(Math.max(tiles.length, atLeast) / 8));
  packed.set(tiles.flatMap(({ first, count }) => [first, count]));
  return packed;
}

/**
 * Returns the query heads of one KV head that a CTA computes together, few enough that shared memory stays below 32
 * KiB on Metal and 48 KiB on CUDA.
 */
function queriesPerGroup(headsPerKv: number, headDim: number, byTensorCores: boolean): number {
  const most = (byTensorCores ? 8 : 4) / (headDim > 128 ? 2 : 1);
  return largestDivisor(headsPerKv, most);
}

const WARPS = 8;
/** Heads of one token per warp in prepare.c, which loads the token's sines and cosines once for all of them. */
const PREPARED_HEADS = 8;
/**
 * Warps per CTA with tensor cores if there are more than MANY_GROUPS CTAs, so that several fit on an SM. Large heads
 * always have so few warps, because the accumulators of 8 warps would exceed shared memory.
 */
const FEWER_WARPS = 4;
const MANY_GROUPS = 128;
/** CUDA's maximum portable cluster size. */
const MOST_CLUSTERED = 8;
/** Maximum CTAs in clusters of three or more, which wait for free SMs; above it a merge launch is faster. */
const MOST_IN_CLUSTERS = 256;

/** A kernel for prompt chunks. `rows`: maximum rows per tile, where a row is one query head of one token. */
type ChunkKernel = {
  name: string;
  body: string;
  rows: number;
  threads: number;
  /** CTAs of the persistent grid (Hopper's kernel only), or 0 if each tile and KV head has its own CTA. */
  groups?: number;
  sharedMemory: number;
  template: Readonly<Record<string, number>>;
};

/** Parameters of warpgroup-chunks.c: CTAs of the grid (the SMs), keys per step, ring stages. */
export type WarpgroupChunks = { groups: number; keys?: number; stages?: number };

/** Threads of warpgroup-chunks.c: two consumer warpgroups and a producer warpgroup. */
const LOADED_THREADS = 384;
/** TMA descriptors per CTA: keys and values. */
const MAPS = 2;

/** Chooses the kernel for a head size. Shared memory: queries, and stages of keys and values; 2-byte elements. */
function chunkKernel(headDim: number, hopper: WarpgroupChunks | undefined): ChunkKernel {
  if (hopper && [64, 128, 256].includes(headDim)) {
    // Uses the largest tile whose accumulators fit in registers, and stages that fit in 227 KiB.
    const isWide = headDim > 128;
    const { keys = isWide ? 64 : 128, stages = isWide ? 2 : 3 } = hopper;
    const [rows, groups] = [128, isWide ? 0 : hopper.groups];
    // Shared memory also holds mbarriers and padding for alignment.
    const barriers = 5 * stages + 2;
    const sharedMemory = (rows + 2 * stages * keys) * headDim * 2 + barriers * 8 + 1024;
    const template = { KEYS: keys, STAGES: stages, GROUPS: groups };
    const [name, body] = ["warpgroup_chunks", warpgroupChunksBody];
    return { name, body, rows, threads: LOADED_THREADS, groups, sharedMemory, template };
  }
  // Uses the largest tile that fits in registers, and in the 99 KiB of shared memory per CTA of smaller GPUs.
  const [warps, rowTiles, keys] = [4, headDim > 128 ? 1 : 2, 32];
  const rows = warps * rowTiles * 16;
  const sharedMemory = (rows + 4 * keys) * (headDim + 8) * 2;
  const template = { WARPS: warps, MT: rowTiles, KEYS: keys };
  return { name: "chunks", body: chunksBody, rows, threads: warps * 32, sharedMemory, template };
}

export class PagedAttention implements BlockAttention {
  readonly #language: Language;
  readonly #shape: PagedShape;
  readonly #dtype: Dtype;
  readonly #kernels: KernelCache;
  readonly #layers: PackedLayers<LayerWork>;
  readonly #queries: number;
  /** Whether tensor cores are used: on NVIDIA GPUs, if the head size fits their layout. */
  readonly #byTensorCores: boolean;
  readonly clustered: BlockAttention["clustered"];
  readonly chunks: ChunkAttention | undefined;
  readonly #bounded: KernelCaches;
  readonly #promptHeads: Pick<PromptHeads, "prepared"> | undefined;

  /** `hopper` and `promptHeads` are given only on Hopper GPUs. */
  constructor(
    language: Language,
    shape: PagedShape,
    dtype: Dtype,
    make: MakeKernel = makeKernel,
    hopper?: WarpgroupChunks,
    promptHeads?: Pick<PromptHeads, "prepared">,
  ) {
    this.#language = language;
    this.#promptHeads = promptHeads;
    this.#shape = shape;
    this.#dtype = dtype;
    this.#layers = new PackedLayers(shape.headDim, (work: LayerWork) => work);
    const { heads, kvHeads, headDim } = shape;
    this.#byTensorCores =
      language === "cuda" && isHalf(dtype) && headDim % 64 === 0 && headDim <= 256;
    if (hopper && this.#byTensorCores) {
      this.clustered = { splits: MOST_CLUSTERED, groups: hopper.groups };
    }
    this.#bounded = new KernelCaches(language, make, attentionHeaders);
    this.#kernels = new KernelCache(language, make, {
      headers: attentionHeaders,
      defines: this.#defines,
    });
    this.#queries = queriesPerGroup(heads / kvHeads, headDim, this.#byTensorCores);
    this.chunks = this.#makeChunks(hopper);
  }

  decode(qkv: MlxArray, pools: Pools, tables: MlxArray, work: LayerWork, splits = 1): MlxArray {
    const inputs = { qkv, layer: this.#layers.of(work), ...pools, tables };
    const tokens = qkv.shape[0]!;
    const template = { ...this.#headTemplate(work), ...this.#attentionTemplate(work) };
    if (splits === 1) return this.#attention("decode", decodeBody, inputs, tokens, template);
    if (this.clustered && splits <= this.clustered.splits && this.#fitClusters(tokens, splits)) {
      return this.#clusterAttention(inputs, tokens, template, splits);
    }
    const parts = this.#attention("decode_parts", decodeBody, inputs, tokens, template, splits);
    return this.#merge(parts, inputs.layer, tokens, work, splits);
  }

  prepare(
    qkv: MlxArray | PendingProduct,
    pools: Pools,
    places: MlxArray,
    work: LayerWork,
    lastQueries = false,
  ): MlxArray {
    const { heads, headDim } = this.#shape;
    const [tokens] = qkv.shape as [number];
    const given = { layer: this.#layers.of(work), ...pools, places };
    const template = this.#headTemplate(work);
    const columns = heads * headDim;
    const made = this.#promptHeads?.prepared(qkv, given, columns, lastQueries, template);
    if (made) return made;
    const inputs = { qkv, ...given };
    const all = qkv.shape[1]! / headDim;
    const warps = Math.min(WARPS, Math.ceil(all / PREPARED_HEADS));
    return this.#kernels.run("prepare", prepareBody, inputs, "queries", {
      outputs: [{ shape: [tokens, columns], dtype: this.#dtype }],
      grid: [warps * 32, Math.ceil(all / (warps * PREPARED_HEADS)), tokens],
      threadGroup: [warps * 32, 1, 1],
      template: { ...template, WARPS: warps, OWN: PREPARED_HEADS },
    });
  }

  attend(
    queries: MlxArray,
    pools: Pools,
    tables: MlxArray,
    places: MlxArray,
    work: LayerWork,
  ): MlxArray {
    const inputs = { queries, layer: this.#layers.of(work), ...pools, tables, places };
    const template = this.#attentionTemplate(work);
    return this.#attention("attend", attendBody, inputs, queries.shape[0]!, template);
  }

  copy(pool: MlxArray, pairs: MlxArray): MlxArray {
    const { kvHeads, headDim } = this.#shape;
    return this.#kernels.run("copy", copyBody, { pool, pairs }, "done", {
      outputs: [{ shape: [1], dtype: "int32" }],
      grid: [256, pairs.shape[0]! / 2, 1],
      threadGroup: [256, 1, 1],
      template: { T: this.#dtype, D: headDim, KV_HEADS: kvHeads },
    });
  }

  free(): void {
    this.#kernels.free();
    this.#bounded.free();
    this.#layers.free();
  }

  /** Returns attention by tiles of prompt chunks on NVIDIA tensor cores; undefined if unsupported. */
  #makeChunks(hopper: WarpgroupChunks | undefined): ChunkAttention | undefined {
    const { heads, kvHeads, headDim } = this.#shape;
    const kernel = chunkKernel(headDim, hopper);
    const { name, body, rows, threads, groups, sharedMemory, template } = kernel;
    // Hopper's tiles are ranges of rows (query heads of tokens); the other kernel's tiles are whole tokens.
    const perToken = heads / kvHeads;
    const tile =
      groups === undefined
        ? { most: Math.floor(rows / perToken), perToken: 1 }
        : { most: rows, perToken };
    const fits = headDim % 16 === 0 && headDim <= 256 && perToken <= rows;
    if (this.#language !== "cuda" || !isHalf(this.#dtype) || !fits) return undefined;
    const attend: ChunkAttention["attend"] = (queries, pools, tables, places, tiles, work) => {
      const count = tiles.shape[0]! / 2;
      const inputs = { queries, layer: this.#layers.of(work), ...pools, tables, places, tiles };
      const attended = { shape: [queries.shape[0]!, heads * headDim], dtype: this.#dtype };
      const made = {
        threadGroup: [threads, 1, 1] as const,
        template: { ...this.#attentionTemplate(work), ...template },
      };
      if (groups === undefined) {
        const launch = { ...made, outputs: [attended], grid: [threads, kvHeads, count] as const };
        return this.#kernels.run(name, body, inputs, "attended", launch, sharedMemory);
      }
      const launched = groups || kvHeads * count;
      const maps = { shape: [launched * MAPS * MAP_WORDS], dtype: "int32" as const };
      const launch = {
        ...made,
        outputs: [attended, maps],
        grid: [threads * launched, 1, 1] as const,
      };
      const kernels = this.#bounded.with([`LAUNCH_BOUNDS ${threads}, 1`]);
      const names = ["attended", "maps"];
      return kernels.runAll(name, body, inputs, names, launch, sharedMemory)[0]!;
    };
    return { tile, attend };
  }

  #attention(
    name: string,
    body: string,
    inputs: Readonly<Record<string, MlxArray>>,
    tokens: number,
    template: KernelLaunch["template"],
    splits = 1,
  ): MlxArray {
    const { heads, headDim } = this.#shape;
    const groups = heads / this.#queries;
    const warps = this.#warpsOf(tokens, splits);
    return this.#kernels.run(name, body, inputs, "attended", {
      outputs: [
        splits === 1
          ? { shape: [tokens, heads * headDim], dtype: this.#dtype }
          : { shape: [tokens, heads, splits, headDim + 2], dtype: "float32" },
      ],
      grid: [warps * 32, groups, tokens * splits],
      threadGroup: [warps * 32, 1, 1],
      template: { ...template, WARPS: warps, QUERIES: this.#queries, SPLITS: splits },
    });
  }

  /** Decodes with a sequence's splits as CTAs of a cluster, which merges their results itself. */
  #clusterAttention(
    inputs: Readonly<Record<string, MlxArray>>,
    tokens: number,
    template: KernelLaunch["template"],
    splits: number,
  ): MlxArray {
    const { heads, headDim } = this.#shape;
    const warps = this.#warpsOf(tokens, splits);
    const launch = {
      outputs: [{ shape: [tokens, heads * headDim], dtype: this.#dtype }],
      grid: [warps * 32 * splits, heads / this.#queries, tokens],
      threadGroup: [warps * 32, 1, 1],
      template: { ...template, WARPS: warps, QUERIES: this.#queries, SPLITS: splits },
    } satisfies KernelLaunch;
    const kernels = this.#bounded.with([...this.#defines, `CLUSTER ${splits}`]);
    const name = `decode_cluster_${splits}`;
    const sharedMemory = this.#queries * (headDim + 4) * 4;
    return kernels.run(name, decodeBody, inputs, "attended", launch, sharedMemory);
  }

  #fitClusters(tokens: number, splits: number): boolean {
    return splits === 2 || this.#groupsOf(tokens, splits) <= MOST_IN_CLUSTERS;
  }

  #groupsOf(tokens: number, splits: number): number {
    return (this.#shape.heads / this.#queries) * tokens * splits;
  }

  #warpsOf(tokens: number, splits: number): number {
    const isMany = this.#byTensorCores && this.#groupsOf(tokens, splits) > MANY_GROUPS;
    return isMany || this.#shape.headDim > 256 ? FEWER_WARPS : WARPS;
  }

  /** Macros that select the headers' implementations. */
  get #defines(): readonly string[] {
    return this.#byTensorCores ? ["TENSOR_CORES"] : [];
  }

  #merge(
    parts: MlxArray,
    layer: MlxArray,
    tokens: number,
    work: LayerWork,
    splits: number,
  ): MlxArray {
    const { heads, headDim } = this.#shape;
    return this.#kernels.run("merge", mergeBody, { parts, layer }, "attended", {
      outputs: [{ shape: [tokens, heads * headDim], dtype: this.#dtype }],
      grid: [32, heads, tokens],
      threadGroup: [32, 1, 1],
      template: {
        T: this.#dtype,
        D: headDim,
        HEADS: heads,
        SPLITS: splits,
        ROTARY_DIMS: work.rope?.dims ?? 0,
        SINKS: work.sinks !== undefined,
        THREADS: 32,
      },
    });
  }

  /** Template arguments of all kernels. */
  #template({ rope }: LayerWork) {
    const { heads, kvHeads, headDim } = this.#shape;
    return {
      T: this.#dtype,
      D: headDim,
      HEADS: heads,
      KV_HEADS: kvHeads,
      ROTARY_DIMS: rope?.dims ?? 0,
    };
  }

  /** Template arguments of kernels that prepare heads. */
  #headTemplate(work: LayerWork) {
    const { norms, sharesKv = false, rope, sinks } = work;
    return {
      ...this.#template(work),
      LONG_BEYOND: rope?.long?.beyond ?? 0,
      SINKS: sinks !== undefined,
      NORMED: norms !== undefined,
      VALUES_NORMED: norms?.value !== undefined,
      SHARES_KV: sharesKv,
    };
  }

  /** Template arguments of kernels that attend. `sharesKv` is left out, because it does not change these kernels. */
  #attentionTemplate(work: LayerWork) {
    const { window = 0, chunked = false, softcap, sinks } = work;
    return {
      ...this.#template(work),
      WINDOW: window,
      CHUNKED: chunked,
      CAPPED: softcap !== undefined,
      SINKS: sinks !== undefined,
    };
  }
}

/** Packs layers' parameters as kernels and CPU operations read them (layer.h), once per layer. */
export class PackedLayers<Work extends object> {
  readonly #headDim: number;
  readonly #layerOf: (work: Work) => LayerWork;
  readonly #packed = new Map<Work, MlxArray>();

  constructor(headDim: number, layerOf: (work: Work) => LayerWork) {
    this.#headDim = headDim;
    this.#layerOf = layerOf;
  }

  of(work: Work): MlxArray {
    const packed = this.#packed.get(work) ?? packWork(this.#layerOf(work), this.#headDim);
    this.#packed.set(work, packed);
    return packed;
  }

  free(): void {
    for (const each of this.#packed.values()) each.free();
  }
}

/**
 * Packs float32 numbers: scale, eps, softcap, magnitude; three norms (D each); wavelengths; sinks; wavelengths and
 * magnitude of long sequences. The caller frees the array.
 */
function packWork(work: LayerWork, headDim: number): MlxArray {
  using _ = new Scope();
  const { norms, rope, scale, softcap = 1, sinks } = work;
  const numbers = [scale, norms?.eps ?? 0, softcap, rope?.magnitude ?? 1];
  const blank = zeros([headDim], "float32");
  const parts = [
    array(Float32Array.from(numbers)),
    norms?.query ?? blank,
    norms?.key ?? blank,
    norms?.value ?? blank,
    ...(rope ? [rope.wavelengths] : []),
    ...(sinks ? [sinks] : []),
    ...(rope?.long ? [rope.long.wavelengths, array(Float32Array.of(rope.long.magnitude))] : []),
  ];
  const packed = hold(concatenate(parts.map((part) => astype(part, "float32"))));
  packed.evaluate();
  return packed;
}

function largestDivisor(of: number, most: number): number {
  for (let divisor = Math.min(of, most); ; divisor--) if (of % divisor === 0) return divisor;
}
