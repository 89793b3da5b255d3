// A prompt's queries, keys and values on NVIDIA GPUs with wgmma (Hopper): fuses their product with
// the preparation of heads (RoPE, writing keys and values). The product is built as usual, and its
// factors are remembered: if attention then prepares its heads, one kernel computes both from the
// factors, and MLX never evaluates the product.
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
  /** By products that attention may prepare. */
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

  /** The output of prepare.c, with its inputs and constants; undefined if unsupported. */
  prepared(
    { qkv, ...given }: Readonly<Record<"qkv" | "layer" | "keys" | "values" | "places", MlxArray>>,
    columns: number,
    lastQueries: boolean,
    constants: NonNullable<KernelLaunch["template"]>,
  ): MlxArray | undefined {
    const factors = this.#factors.get(qkv);
    const { D, ROTARY_DIMS, NORMED, SHARES_KV } = constants;
    const isWhole = D === PREPARED_HEAD_DIM && (ROTARY_DIMS === 0 || ROTARY_DIMS === D);
    // Norms of heads are faster in a kernel of their own (docs/log.md).
    if (!factors || !isWhole || NORMED || SHARES_KV) return undefined;
    // The factors may have been freed with their scope.
    if (factors.x.handle === null) return undefined;
    return this.#products.prepared({ ...factors, ...given }, columns, lastQueries, constants);
  }

  free(): void {
    this.#products.free();
  }
}
