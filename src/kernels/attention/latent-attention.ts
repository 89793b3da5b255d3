// Paged latent attention: multi-head latent attention (MLA) with absorbed projections. All heads of a token attend to
// one vector per token. The whole vector is the key, its first `latent` features are the value. The other `rotary`
// features hold the position: RoPE rotates feature 2i with 2i + 1, the order in which all checkpoints store them.
import type { MlxArray } from "../../mlx/array.ts";
import { type Dtype, isHalf } from "../../mlx/dtype.ts";
import { type Language, type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { concatenate, reshape, slice } from "../../mlx/ops.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import copyBody from "./copy.c" with { type: "text" };
import { attentionHeaders } from "./headers.ts";
import attendBody from "./latent-attend.c" with { type: "text" };
import chunksBody from "./latent-chunks.c" with { type: "text" };
import decodeBody from "./latent-decode.c" with { type: "text" };
import decodeTilesBody from "./latent-decode-tiles.c" with { type: "text" };
import writeBody from "./latent-write.c" with { type: "text" };
import mergeBody from "./merge.c" with { type: "text" };
import { type LayerWork, PackedLayers, type TileSize } from "./paged-attention.ts";

export type LatentShape = { heads: number; latent: number; rotary: number };

/** A layer's parameters. `norm`: the latent features' RMSNorm, called as a function or fused by its weight. */
export type LatentWork = Pick<LayerWork, "scale" | "rope"> & {
  norm: ((x: MlxArray) => MlxArray) & { weight: MlxArray; eps: number };
};

/** Columns of each head in `rows` (T, columns): those of head h begin at column first + h * stride. */
export type HeadColumns = { rows: MlxArray; first: number; stride: number };

/** A step's queries and latent vectors, read directly from the outputs of their projections. */
export type LatentRows = {
  /** The latent features of the queries, already multiplied by the absorbed projection: (T, heads * latent). */
  absorbed: MlxArray;
  /** The rotary features of the queries, before RoPE. */
  placed: HeadColumns;
  /** The tokens' vectors, from column `first` of rows (T, columns): unnormed latent features, then rotary ones. */
  latents: Omit<HeadColumns, "stride">;
};

/** Latent attention; pools (blocks, 1, 32, latent + rotary) are written in place. */
export interface LatentAttention {
  /** CTAs among which a token's heads are divided. */
  readonly groups: number;
  /** Size of tiles of consecutive tokens; undefined if each token attends by itself. */
  readonly tile?: TileSize | undefined;
  /**
   * Decodes the newest token of each of B sequences -> (B, heads * latent), and writes the token's vector to the
   * sequence's last KV block.
   */
  decode(
    rows: LatentRows,
    pool: MlxArray,
    tables: MlxArray,
    work: LatentWork,
    splits?: number,
  ): MlxArray;
  /**
   * Writes vectors to their KV slots and attends -> (T, heads * latent). If `tile` is set, `tiles` are tiles of that
   * size (packTiles).
   */
  attend(
    rows: LatentRows,
    pool: MlxArray,
    tables: MlxArray,
    places: MlxArray,
    work: LatentWork,
    tiles?: MlxArray,
  ): MlxArray;
  /** On evaluation copies KV blocks in the pool, given pairs (C * 2) of source and destination block. */
  copy(pool: MlxArray, pairs: MlxArray): MlxArray;
  free(): void;
}

/** Returns each head's first `features` columns, (T, heads, features), which must lie within one stride. */
export function columnsOf(
  { rows, first, stride }: HeadColumns,
  heads: number,
  features: number,
): MlxArray {
  const within = first % stride;
  const own = slice(rows, 1, first - within, first - within + heads * stride);
  return slice(reshape(own, [-1, heads, stride]), 2, within, within + features);
}

/** Makes queries (T, heads * D) and normed vectors (T, D), for kernels that do not read their parts in place. */
export function joinedRows(
  { absorbed, placed, latents }: LatentRows,
  { heads, latent, rotary }: LatentShape,
  norm: LatentWork["norm"],
): { queries: MlxArray; latents: MlxArray } {
  const byHead = reshape(absorbed, [-1, heads, latent]);
  const queries = concatenate([byHead, columnsOf(placed, heads, rotary)], -1);
  const { rows, first } = latents;
  const compressed = norm(slice(rows, 1, first, first + latent));
  const position = slice(rows, 1, first + latent, first + latent + rotary);
  return {
    queries: reshape(queries, [-1, heads * (latent + rotary)]),
    latents: concatenate([compressed, position], -1),
  };
}

/** Converts to plain attention's parameters: the norm of the latents takes the place of the queries' norm. */
export function layerOf({ norm, ...work }: LatentWork): LayerWork {
  return { ...work, norms: { query: norm.weight, eps: norm.eps } };
}

/** Heads that a warp holds in registers, and maximum warps per CTA. */
const HEADS_PER_WARP = 2;
const MOST_WARPS = 8;

/** Threads of the merge kernel: more than for plain heads, because a head has many latent features. */
const MERGE_THREADS = 128;

/** The work of a CTA: `heads` heads per token, as `rowTiles` groups of 16 rows with `team` warps each. */
type Tiling = { rowTiles: number; team: number; heads: number };

/** Returns the tiling for decoding: all heads of a token in one CTA if they fit, so that KV blocks are read once. */
function decodeTiling(heads: number): Tiling {
  const rowTiles = heads <= 16 ? 1 : heads <= 32 ? 2 : 4;
  return { rowTiles, team: rowTiles === 4 ? 2 : 4, heads: headsPerGroup(heads, 16 * rowTiles) };
}

/** Returns the tiling for prompt chunks, with the most rows whose accumulators fit in registers. */
function chunkTiling(heads: number): Tiling {
  return { rowTiles: 4, team: 2, heads: headsPerGroup(heads, 64) };
}

/** Returns the heads per CTA if all heads are divided evenly among the fewest CTAs. */
function headsPerGroup(heads: number, most: number): number {
  return Math.ceil(heads / Math.ceil(heads / most));
}

/** Whether the tensor core kernels' tiles fit in registers, and in smaller GPUs' 99 KiB of shared memory per CTA. */
function fitsTiles({ latent, rotary }: LatentShape): boolean {
  return latent % 64 === 0 && latent <= 512 && rotary % 16 === 0 && rotary > 0 && rotary <= 64;
}

export class LatentKernels implements LatentAttention {
  readonly #shape: LatentShape;
  readonly #dtype: Dtype;
  readonly #kernels: KernelCache;
  readonly #layers: PackedLayers<LatentWork>;
  readonly #warps: number;
  /** The tensor core kernels' tilings; undefined if tensor cores are not used. */
  readonly #tilings: { decode: Tiling; chunks: Tiling } | undefined;
  readonly groups: number;
  readonly tile: TileSize | undefined;

  constructor(language: Language, shape: LatentShape, dtype: Dtype, make: MakeKernel = makeKernel) {
    this.#shape = shape;
    this.#dtype = dtype;
    this.#kernels = new KernelCache(language, make, { headers: attentionHeaders });
    this.#layers = new PackedLayers(shape.latent, layerOf);
    const { heads } = shape;
    const groups = Math.ceil(heads / (HEADS_PER_WARP * MOST_WARPS));
    this.#warps = Math.ceil(heads / (HEADS_PER_WARP * groups));
    const byTensorCores = language === "cuda" && isHalf(dtype) && fitsTiles(shape);
    const tilings = { decode: decodeTiling(heads), chunks: chunkTiling(heads) };
    this.#tilings = byTensorCores ? tilings : undefined;
    this.groups = byTensorCores ? Math.ceil(heads / tilings.decode.heads) : groups;
    const { rowTiles, heads: each } = tilings.chunks;
    const most = Math.floor((16 * rowTiles) / each);
    this.tile = byTensorCores ? { most, perToken: 1 } : undefined;
  }

  decode(
    rows: LatentRows,
    pool: MlxArray,
    tables: MlxArray,
    work: LatentWork,
    splits = 1,
  ): MlxArray {
    const layer = this.#layers.of(work);
    const tokens = rows.absorbed.shape[0]!;
    const isSplit = splits === 1 ? "" : "_parts";
    const tiling = this.#tilings?.decode;
    if (tiling) {
      const { absorbed, placed, latents } = rows;
      const inputs = { absorbed, placed: placed.rows, latents: latents.rows, layer, pool, tables };
      const name = `latent_decode_tiles${isSplit}`;
      const groups = tokens * splits;
      const made = this.#tiled(name, decodeTilesBody, inputs, rows, work, tiling, groups, splits);
      return isSplit ? this.#merge(made, layer) : made;
    }
    const inputs = { ...joinedRows(rows, this.#shape, work.norm), layer, pool, tables };
    const name = `latent_decode${isSplit}`;
    const made = this.#attention(name, decodeBody, inputs, tokens, work, splits);
    return isSplit ? this.#merge(made, layer) : made;
  }

  attend(
    rows: LatentRows,
    pool: MlxArray,
    tables: MlxArray,
    places: MlxArray,
    work: LatentWork,
    tiles?: MlxArray,
  ): MlxArray {
    const layer = this.#layers.of(work);
    const { absorbed, placed, latents } = rows;
    const tokens = absorbed.shape[0]!;
    const { T, LATENT, ROTARY, ROTATED } = this.#template(work);
    const writing = { latents: latents.rows, layer, pool, places };
    const written = this.#kernels.run("latent_write", writeBody, writing, "written", {
      outputs: [{ shape: [3 * tokens], dtype: "int32" }],
      grid: [128, 1, tokens],
      threadGroup: [128, 1, 1],
      template: { T, LATENT, ROTARY, ROTATED, ...latentTemplate(rows) },
    });
    const reading = { layer, pool, tables, places: written };
    const tiling = this.#tilings?.chunks;
    if (tiling && tiles) {
      const inputs = { absorbed, placed: placed.rows, ...reading, tiles };
      const groups = tiles.shape[0]! / 2;
      return this.#tiled("latent_chunks", chunksBody, inputs, rows, work, tiling, groups);
    }
    const { queries } = joinedRows(rows, this.#shape, work.norm);
    return this.#attention("latent_attend", attendBody, { queries, ...reading }, tokens, work);
  }

  copy(pool: MlxArray, pairs: MlxArray): MlxArray {
    const { latent, rotary } = this.#shape;
    return this.#kernels.run("copy", copyBody, { pool, pairs }, "done", {
      outputs: [{ shape: [1], dtype: "int32" }],
      grid: [256, pairs.shape[0]! / 2, 1],
      threadGroup: [256, 1, 1],
      template: { T: this.#dtype, D: latent + rotary, KV_HEADS: 1 },
    });
  }

  free(): void {
    this.#kernels.free();
    this.#layers.free();
  }

  #attention(
    name: string,
    body: string,
    inputs: Readonly<Record<string, MlxArray>>,
    tokens: number,
    work: LatentWork,
    splits = 1,
  ): MlxArray {
    const { heads } = this.#shape;
    const threads = this.#warps * 32;
    return this.#kernels.run(name, body, inputs, "attended", {
      outputs: [this.#output(tokens, splits)],
      grid: [threads, this.groups, tokens * splits],
      threadGroup: [threads, 1, 1],
      template: {
        ...this.#template(work),
        HEADS: heads,
        OWN: HEADS_PER_WARP,
        WARPS: this.#warps,
        SPLITS: splits,
      },
    });
  }

  /** Launches a kernel of latent-tiles.h. `groups` is the grid size along z. */
  #tiled(
    name: string,
    body: string,
    inputs: Readonly<Record<string, MlxArray>>,
    rows: LatentRows,
    work: LatentWork,
    { rowTiles, team, heads: each }: Tiling,
    groups: number,
    splits = 1,
  ): MlxArray {
    const { heads, latent, rotary } = this.#shape;
    const threads = rowTiles * team * 32;
    // Two tiles of 32 tokens, 2 bytes per feature; then per thread 16 bytes of partial scores for every 8 tokens.
    const sharedMemory = 2 * 32 * (latent + rotary + 8) * 2 + threads * 4 * 16;
    const { absorbed, placed } = rows;
    const launch = {
      outputs: [this.#output(absorbed.shape[0]!, splits)],
      grid: [threads, Math.ceil(heads / each), groups],
      threadGroup: [threads, 1, 1],
      template: {
        ...this.#template(work),
        ...latentTemplate(rows),
        PLACED_COLUMNS: placed.rows.shape[1]!,
        PLACED_FIRST: placed.first,
        PLACED_STRIDE: placed.stride,
        HEADS: heads,
        HEADS_EACH: each,
        ROW_TILES: rowTiles,
        TEAM: team,
        SPLITS: splits,
      },
    } as const;
    return this.#kernels.run(name, body, inputs, "attended", launch, sharedMemory);
  }

  /** Returns shape and type of the attention output or, with several splits, of the splits' partial results. */
  #output(tokens: number, splits: number) {
    const { heads, latent } = this.#shape;
    return splits === 1
      ? { shape: [tokens, heads * latent], dtype: this.#dtype }
      : { shape: [tokens, heads, splits, latent + 2], dtype: "float32" as const };
  }

  /** Merges the splits' partial results, parts (tokens, heads, splits, latent + 2). */
  #merge(parts: MlxArray, layer: MlxArray): MlxArray {
    const [tokens, heads, splits] = parts.shape as [number, number, number];
    const { latent } = this.#shape;
    return this.#kernels.run("merge", mergeBody, { parts, layer }, "attended", {
      outputs: [{ shape: [tokens, heads * latent], dtype: this.#dtype }],
      grid: [MERGE_THREADS, heads, tokens],
      threadGroup: [MERGE_THREADS, 1, 1],
      template: {
        T: this.#dtype,
        D: latent,
        HEADS: heads,
        SPLITS: splits,
        ROTARY_DIMS: 0,
        SINKS: false,
        THREADS: MERGE_THREADS,
      },
    });
  }

  #template({ rope }: LatentWork) {
    const { latent, rotary } = this.#shape;
    return { T: this.#dtype, LATENT: latent, ROTARY: rotary, ROTATED: rope !== undefined };
  }
}

function latentTemplate({ latents: { rows, first } }: LatentRows) {
  return { LATENT_COLUMNS: rows.shape[1]!, LATENT_FIRST: first };
}
