// Latent attention over blocks, as multi-head latent attention (MLA) computes it when its projections are absorbed:
// all heads of a token attend to one vector of each token. All of it is the key, its first `latent` features are the
// value. The `rotary` features behind them hold the position: unlike in heads, RoPE rotates feature 2i with 2i + 1,
// because all files have them so.
import type { MlxArray } from "../mlx/array.ts";
import type { Dtype } from "../mlx/dtype.ts";
import { type MakeKernel, makeKernel } from "../mlx/kernel.ts";
import copyBody from "./copy.c" with { type: "text" };
import { KernelCache } from "./kernel-cache.ts";
import attendBody from "./latent-attend.c" with { type: "text" };
import decodeBody from "./latent-decode.c" with { type: "text" };
import writeBody from "./latent-write.c" with { type: "text" };
import mergeBody from "./merge.c" with { type: "text" };
import { type LayerWork, PackedLayers } from "./paged-attention.ts";
import type { Language } from "./source.ts";

export type LatentShape = { heads: number; latent: number; rotary: number };

/** One object per layer. */
export type LatentWork = Pick<LayerWork, "scale" | "rope">;

/** What the latent store needs. Pools are (blocks, 1, 32, latent + rotary), written in place. */
export interface LatentAttention {
  /** Into how many thread groups a token's heads are divided. */
  readonly groups: number;
  /**
   * queries (B, heads * D), latents (B, D): the newest token of each sequence, whose vector goes to the sequence's
   * last block -> (B, heads * latent)
   */
  decode(
    queries: MlxArray,
    latents: MlxArray,
    pool: MlxArray,
    tables: MlxArray,
    work: LatentWork,
    splits?: number,
  ): MlxArray;
  /** queries (T, heads * D), latents (T, D), which go to their slots -> (T, heads * latent) */
  attend(
    queries: MlxArray,
    latents: MlxArray,
    pool: MlxArray,
    tables: MlxArray,
    places: MlxArray,
    work: LatentWork,
  ): MlxArray;
  /** Copies blocks, pairs (C * 2) of from and to; evaluate the result. */
  copy(pool: MlxArray, pairs: MlxArray): MlxArray;
  free(): void;
}

/** Heads that a warp holds in its registers, and the most warps of a group. */
const HEADS_PER_WARP = 2;
const MOST_WARPS = 8;

export class LatentKernels implements LatentAttention {
  readonly #shape: LatentShape;
  readonly #dtype: Dtype;
  readonly #kernels: KernelCache;
  readonly #layers: PackedLayers;
  readonly #warps: number;
  readonly groups: number;

  constructor(language: Language, shape: LatentShape, dtype: Dtype, make: MakeKernel = makeKernel) {
    this.#shape = shape;
    this.#dtype = dtype;
    this.#kernels = new KernelCache(language, make);
    this.#layers = new PackedLayers(shape.latent);
    this.groups = Math.ceil(shape.heads / (HEADS_PER_WARP * MOST_WARPS));
    this.#warps = Math.ceil(shape.heads / (HEADS_PER_WARP * this.groups));
  }

  decode(
    queries: MlxArray,
    latents: MlxArray,
    pool: MlxArray,
    tables: MlxArray,
    work: LatentWork,
    splits = 1,
  ): MlxArray {
    const layer = this.#layers.of(work);
    const inputs = { queries, latents, layer, pool, tables };
    const tokens = queries.shape[0]!;
    if (splits === 1) return this.#attention("latent_decode", decodeBody, inputs, tokens, work);
    const name = "latent_decode_parts";
    return this.#merge(this.#attention(name, decodeBody, inputs, tokens, work, splits), layer);
  }

  attend(
    queries: MlxArray,
    latents: MlxArray,
    pool: MlxArray,
    tables: MlxArray,
    places: MlxArray,
    work: LatentWork,
  ): MlxArray {
    const layer = this.#layers.of(work);
    const tokens = queries.shape[0]!;
    const { T, LATENT, ROTARY, ROTATED } = this.#template(work);
    const inputs = { latents, layer, pool, places };
    const written = this.#kernels.run("latent_write", writeBody, inputs, "written", {
      outputs: [{ shape: [3 * tokens], dtype: "int32" }],
      grid: [128, 1, tokens],
      threadGroup: [128, 1, 1],
      template: { T, LATENT, ROTARY, ROTATED },
    });
    const reading = { queries, layer, pool, tables, places: written };
    return this.#attention("latent_attend", attendBody, reading, tokens, work);
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
    const { heads, latent } = this.#shape;
    const threads = this.#warps * 32;
    return this.#kernels.run(name, body, inputs, "attended", {
      outputs: [
        splits === 1
          ? { shape: [tokens, heads * latent], dtype: this.#dtype }
          : { shape: [tokens, heads, splits, latent + 2], dtype: "float32" },
      ],
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

  /** parts (tokens, heads, splits, latent + 2) */
  #merge(parts: MlxArray, layer: MlxArray): MlxArray {
    const [tokens, heads, splits] = parts.shape as [number, number, number];
    const { latent } = this.#shape;
    return this.#kernels.run("merge", mergeBody, { parts, layer }, "attended", {
      outputs: [{ shape: [tokens, heads * latent], dtype: this.#dtype }],
      grid: [32, heads, tokens],
      threadGroup: [32, 1, 1],
      template: {
        T: this.#dtype,
        D: latent,
        HEADS: heads,
        SPLITS: splits,
        ROTARY_DIMS: 0,
        SINKS: false,
      },
    });
  }

  #template({ rope }: LatentWork) {
    const { latent, rotary } = this.#shape;
    return { T: this.#dtype, LATENT: latent, ROTARY: rotary, ROTATED: rope !== undefined };
  }
}
