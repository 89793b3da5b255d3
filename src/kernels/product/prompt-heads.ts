// A prompt's queries, keys and values on NVIDIA GPUs with wgmma (Hopper): their product, and what is done to heads before they
// attend, in one launch. The product is built as always, and what it is made of is remembered: where attention prepares heads of
// it, one kernel makes both, and nothing computes the first one.
import type { MlxArray } from "../../mlx/array.ts";
import { isHalf } from "../../mlx/dtype.ts";
import type { KernelLaunch, MakeKernel } from "../../mlx/kernel.ts";
import type { Gpu } from "../host/gpu.ts";
import { fitsPrompt, PREPARED_HEAD_DIM, PromptProducts } from "./prompt-product.ts";

/** x (rows, K), weight (N, K) */
type Factors = Readonly<Record<"x" | "weight", MlxArray>>;

export class PromptHeads {
  readonly #gpu: Gpu;
  readonly #products: PromptProducts;
  /** Of products that may be prepared, as long as they are there. */
  readonly #factors = new WeakMap<MlxArray, Factors>();

  constructor(gpu: Gpu, make: MakeKernel) {
    this.#gpu = gpu;
    this.#products = new PromptProducts(gpu, make);
  }

  remember(product: MlxArray, factors: Factors): MlxArray {
    const { x, weight } = factors;
    const [rows] = x.shape as [number];
    const [columns, inputs] = weight.shape as [number, number];
    const isOneType = isHalf(x.dtype) && weight.dtype === x.dtype;
    if (isOneType && x.ndim === 2 && fitsPrompt(this.#gpu, rows, columns, inputs)) {
      this.#factors.set(product, factors);
    }
    return product;
  }

  /** What prepare.c makes, with its inputs and constants; undefined where that has to. */
  prepared(
    { qkv, ...given }: Readonly<Record<"qkv" | "layer" | "keys" | "values" | "places", MlxArray>>,
    columns: number,
    lastQueries: boolean,
    constants: NonNullable<KernelLaunch["template"]>,
  ): MlxArray | undefined {
    const factors = this.#factors.get(qkv);
    const { D, ROTARY_DIMS, NORMED, SHARES_KV } = constants;
    const isWhole = D === PREPARED_HEAD_DIM && (ROTARY_DIMS === 0 || ROTARY_DIMS === D);
    // Heads that are normed are quicker by themselves (docs/log.md).
    if (!factors || !isWhole || NORMED || SHARES_KV) return undefined;
    // They may be gone by now, with the scope that they were made in.
    if (factors.x.handle === null) return undefined;
    return this.#products.prepared({ ...factors, ...given }, columns, lastQueries, constants);
  }

  free(): void {
    this.#products.free();
  }
}
