// The product for a prompt's queries, keys and values on NVIDIA GPUs with wgmma (Hopper), in one launch with RoPE
// and the KV write.
import type { MlxArray } from "../../mlx/array.ts";
import { isHalf } from "../../mlx/dtype.ts";
import type { KernelLaunch, MakeKernel } from "../../mlx/kernel.ts";
import { PendingArray } from "../../mlx/pending.ts";
import type { Gpu } from "../host/gpu.ts";
import { fitsPrompt, PREPARED_HEAD_DIM, PromptProducts } from "./prompt-product.ts";

/** x (rows, K), weight (N, K) */
type Factors = Readonly<Record<"x" | "weight", MlxArray>>;

/** A product that attention may compute when it prepares heads of it. */
export class PendingProduct extends PendingArray<Factors> {}

export class PromptHeads {
  readonly #gpu: Gpu;
  readonly #products: PromptProducts;

  constructor(gpu: Gpu, make: MakeKernel) {
    this.#gpu = gpu;
    this.#products = new PromptProducts(gpu, make);
  }

  /** A pending product if the kernel supports its factors. */
  pending(product: MlxArray, factors: Factors): MlxArray | PendingProduct {
    const { x, weight } = factors;
    const [rows] = x.shape as [number];
    const [columns, inputs] = weight.shape as [number, number];
    const isOneType = isHalf(x.dtype) && weight.dtype === x.dtype;
    const fits = isOneType && x.ndim === 2 && fitsPrompt(this.#gpu, rows, columns, inputs);
    return fits ? new PendingProduct(product, factors) : product;
  }

  /** The output of prepare.c, with its inputs and constants; undefined if prepare.c itself has to run. */
  prepared(
    qkv: MlxArray | PendingProduct,
    given: Readonly<Record<"layer" | "keys" | "values" | "places", MlxArray>>,
    columns: number,
    lastQueries: boolean,
    constants: NonNullable<KernelLaunch["template"]>,
  ): MlxArray | undefined {
    const factors = qkv instanceof PendingProduct ? qkv.inputs : undefined;
    const { D, ROTARY_DIMS, NORMED, SHARES_KV } = constants;
    const isWhole = D === PREPARED_HEAD_DIM && (ROTARY_DIMS === 0 || ROTARY_DIMS === D);
    // With norms over heads the separate launch is faster (docs/log.md).
    if (!factors || !isWhole || NORMED || SHARES_KV) return undefined;
    return this.#products.prepared({ ...factors, ...given }, columns, lastQueries, constants);
  }

  free(): void {
    this.#products.free();
  }
}
