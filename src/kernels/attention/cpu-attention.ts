// Paged attention on a CPU, with our own operations. Pools and arithmetic are float32; 16-bit rows are converted
// before and after. Blocks of keys are stored transposed, with the tokens as last axis.
import type { MlxArray } from "../../mlx/array.ts";
import {
  attendBlocks,
  attendLatent,
  copyBlocks,
  decodeBlocks,
  prepareBlocks,
} from "../../mlx/cpu.ts";
import type { Dtype } from "../../mlx/dtype.ts";
import { astype } from "../../mlx/ops.ts";
import {
  joinedRows,
  type LatentAttention,
  type LatentRows,
  type LatentShape,
  type LatentWork,
  layerOf,
} from "./latent-attention.ts";
import {
  type BlockAttention,
  type LayerWork,
  PackedLayers,
  type Pools,
} from "./paged-attention.ts";

export class CpuAttention implements BlockAttention {
  readonly #dtype: Dtype;
  readonly #layers: PackedLayers<LayerWork>;

  constructor(headDim: number, dtype: Dtype) {
    this.#layers = new PackedLayers(headDim, (work: LayerWork) => work);
    this.#dtype = dtype;
  }

  decode(qkv: MlxArray, pools: Pools, tables: MlxArray, work: LayerWork): MlxArray {
    return this.#inFloat32(qkv, (x) =>
      decodeBlocks(x, pools, tables, this.#layers.of(work), optionsOf(work)),
    );
  }

  prepare(qkv: MlxArray, pools: Pools, places: MlxArray, work: LayerWork): MlxArray {
    return this.#inFloat32(qkv, (x) =>
      prepareBlocks(x, pools, places, this.#layers.of(work), optionsOf(work)),
    );
  }

  attend(
    queries: MlxArray,
    pools: Pools,
    tables: MlxArray,
    places: MlxArray,
    work: LayerWork,
  ): MlxArray {
    return this.#inFloat32(queries, (x) =>
      attendBlocks(x, pools, tables, places, this.#layers.of(work), optionsOf(work)),
    );
  }

  copy(pool: MlxArray, pairs: MlxArray): MlxArray {
    return copyBlocks(pool, pairs);
  }

  free(): void {
    this.#layers.free();
  }

  #inFloat32(x: MlxArray, compute: (x: MlxArray) => MlxArray): MlxArray {
    if (this.#dtype === "float32") return compute(x);
    return astype(compute(astype(x, "float32")), this.#dtype);
  }
}

export class CpuLatentAttention implements LatentAttention {
  readonly #shape: LatentShape;
  readonly #dtype: Dtype;
  readonly #layers: PackedLayers<LatentWork>;
  readonly groups = 1;

  constructor(shape: LatentShape, dtype: Dtype) {
    this.#shape = shape;
    this.#dtype = dtype;
    this.#layers = new PackedLayers(shape.latent, layerOf);
  }

  decode(rows: LatentRows, pool: MlxArray, tables: MlxArray, work: LatentWork): MlxArray {
    return this.#attend(rows, pool, tables, undefined, work);
  }

  attend(
    rows: LatentRows,
    pool: MlxArray,
    tables: MlxArray,
    places: MlxArray,
    work: LatentWork,
  ): MlxArray {
    return this.#attend(rows, pool, tables, places, work);
  }

  copy(pool: MlxArray, pairs: MlxArray): MlxArray {
    return copyBlocks(pool, pairs);
  }

  free(): void {
    this.#layers.free();
  }

  #attend(
    rows: LatentRows,
    pool: MlxArray,
    tables: MlxArray,
    places: MlxArray | undefined,
    work: LatentWork,
  ): MlxArray {
    const joined = joinedRows(rows, this.#shape, work.norm);
    const [queries, latents] = [joined.queries, joined.latents].map((x) => astype(x, "float32"));
    const options = { latent: this.#shape.latent, rotated: work.rope !== undefined };
    const layer = this.#layers.of(work);
    const made = attendLatent(queries!, latents!, pool, tables, places, layer, options);
    return astype(made, this.#dtype);
  }
}

function optionsOf(work: LayerWork) {
  const { norms, sharesKv = false, rope, window = 0, chunked = false, softcap, sinks } = work;
  return {
    normed: norms !== undefined,
    valuesNormed: norms?.value !== undefined,
    sharesKv,
    rotaryDims: rope?.dims ?? 0,
    longBeyond: rope?.long?.beyond ?? 0,
    window,
    chunked,
    capped: softcap !== undefined,
    sinks: sinks !== undefined,
  };
}
