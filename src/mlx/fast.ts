// MLX's fused transformer operations.
import { cText, optionalInt } from "../../ffi/memory.ts";
import { type MlxArray, optionalHandle } from "./array.ts";
import { op } from "./op.ts";

/** Computes RMSNorm over the last axis; the weight defaults to ones. */
export function rmsNorm(x: MlxArray, weight: MlxArray | undefined, eps: number): MlxArray {
  return op("mlx_fast_rms_norm", x.handle, optionalHandle(weight), eps);
}

/** Computes LayerNorm over the last axis; the weight defaults to ones, the bias to zeros. */
export function layerNorm(
  x: MlxArray,
  weight: MlxArray | undefined,
  bias: MlxArray | undefined,
  eps: number,
): MlxArray {
  return op("mlx_fast_layer_norm", x.handle, optionalHandle(weight), optionalHandle(bias), eps);
}

/**
 * Applies non-interleaved RoPE to the first `dims` features: x (B, H, L, D), positions (B), wavelengths (dims / 2).
 */
export function rope(
  x: MlxArray,
  dims: number,
  wavelengths: MlxArray,
  positions: MlxArray,
): MlxArray {
  const [pairs, base, scale] = [false, optionalInt(undefined), 1];
  return op(
    "mlx_fast_rope_dynamic",
    x.handle,
    dims,
    pairs,
    base,
    scale,
    positions.handle,
    wavelengths.handle,
  );
}

export type Attention = {
  scale: number;
  /** "causal", or an array: if bool, false masks a key out; otherwise it is added to the scores. */
  mask?: "causal" | MlxArray | undefined;
  /** Scores, one per head, that add to the softmax's denominator only (gpt-oss). */
  sinks?: MlxArray | undefined;
};

const causal = cText("causal");
const byArray = cText("array");
const none = cText("");

/** Computes softmax(q k^T * scale + mask) v; q (B, H, L, D), k and v (B, Hkv, T, D) with Hkv dividing H. */
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
