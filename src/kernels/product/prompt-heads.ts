// Computes a prompt's queries, keys and values on NVIDIA GPUs with wgmma (Hopper): the product, RoPE and the KV write
// in one launch.
import type { MlxArray } from "../../mlx/array.ts";
import { isHalf } from "../../mlx/dtype.ts";
import type { KernelLaunch, MakeKernel } from "../../mlx/kernel.ts";
import { PendingArray } from "../../mlx/pending.ts";
import type { Gpu } from "../host/gpu.ts";
import { fitsPrompt, PREPARED_HEAD_DIM, PromptProducts } from "./prompt-product.ts";

/** The operands x (rows, K) and weight (N, K) of a product. */
type Factors = Readonly<Record<"x" | "weight", MlxArray>>;

/** A product that is not computed yet: attention may fuse it with RoPE and the KV write (`PromptHeads`). */
export class PendingProduct extends PendingArray<Factors> {}

export class PromptHeads {
  readonly #gpu: Gpu;
  readonly #products: PromptProducts;

  constructor(gpu: Gpu, make: MakeKernel) {
    this.#gpu = gpu;
    this.#products = new PromptProducts(gpu, make);
  }

  /** Wraps the product as pending if the kernel supports its factors. */
  pending(product: MlxArray, factors: Factors): MlxArray | PendingProduct {
    const { x, weight } = factors;
    const [rows] = x.shape as [number];
    const [columns, inputs] = weight.shape as [number, number];
    const isOneType = isHalf(x.dtype) && weight.dtype === x.dtype;
    const fits = isOneType && x.ndim === 2 && fitsPrompt(this.#gpu, rows, columns, inputs);
    return fits ? new PendingProduct(product, factors) : product;
  }

  /** Multiplies and does prepare.c's work, with its inputs and constants; undefined if prepare.c has to run. */
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
    // If heads are normed, the separate launch of prepare.c is faster (docs/log.md).
    if (!factors || !isWhole || NORMED || SHARES_KV) return undefined;
    return this.#products.prepared({ ...factors, ...given }, columns, lastQueries, constants);
  }

  free(): void {
    this.#products.free();
  }
}
