// MLX's fused operations of a transformer.
import { cText, optionalFloat } from "../../ffi/memory.ts";
import { type MlxArray, optionalHandle } from "./array.ts";
import { op } from "./op.ts";

/** Over the last axis. Without a weight, the norm alone. */
export function rmsNorm(x: MlxArray, weight: MlxArray | undefined, eps: number): MlxArray {
  return op("mlx_fast_rms_norm", x.handle, optionalHandle(weight), eps);
}

export function layerNorm(
  x: MlxArray,
  weight: MlxArray | undefined,
  bias: MlxArray | undefined,
  eps: number,
): MlxArray {
  const [scale, shift] = [optionalHandle(weight), optionalHandle(bias)];
  return op("mlx_fast_layer_norm", x.handle, scale, shift, eps);
}

export type Rope = {
  /** How many of the last axis's features are turned. */
  dims: number;
  /** Pairs stand side by side (GGUF's llama) instead of half a head apart (Hugging Face). */
  traditional?: boolean;
  scale?: number;
} & ({ base: number; freqs?: never } | { freqs: MlxArray; base?: never });

/** Rotary positions for x (B, heads, L, D), from `offset`: one number, or one a row as (B). */
export function rope(x: MlxArray, options: Rope, offset: number | MlxArray): MlxArray {
  const { dims, traditional = false, scale = 1 } = options;
  const base = optionalFloat(options.base);
  const freqs = optionalHandle(options.freqs);
  if (typeof offset === "number") {
    return op("mlx_fast_rope", x.handle, dims, traditional, base, scale, offset, freqs);
  }
  return op(
    "mlx_fast_rope_dynamic",
    x.handle,
    dims,
    traditional,
    base,
    scale,
    offset.handle,
    freqs,
  );
}

export type Attention = {
  scale: number;
  /** Causal, or an array that is added to the scores or, as bool, says which of them count. */
  mask?: "causal" | MlxArray | undefined;
  /** One score a head that takes part in the softmax and in nothing else. */
  sinks?: MlxArray | undefined;
};

const causal = cText("causal");
const byArray = cText("array");
const none = cText("");

/** softmax(q k^T * scale + mask) v; q (B, H, L, D), k and v (B, Hkv, T, D) with Hkv dividing H. */
export function attention(
  q: MlxArray,
  k: MlxArray,
  v: MlxArray,
  { scale, mask, sinks }: Attention,
): MlxArray {
  const mode = mask === "causal" ? causal : mask ? byArray : none;
  const maskHandle = optionalHandle(mask === "causal" ? undefined : mask);
  return op(
    "mlx_fast_scaled_dot_product_attention",
    q.handle,
    k.handle,
    v.handle,
    scale,
    mode,
    maskHandle,
    optionalHandle(sinks),
    false,
  );
}
