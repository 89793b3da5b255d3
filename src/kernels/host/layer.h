// A layer's attention parameters: one float array, written by `PackedLayers` (paged-attention.ts).
// After the four scalars below come the RMSNorm weights of queries, keys and values (D each), the
// RoPE wavelengths (ROTARY_DIMS / 2), and the attention sinks (one per query head). If LONG_BEYOND is
// above 0, sequences of more tokens have a RoPE of their own: its wavelengths and magnitude follow.
// Latent attention keeps the norm weight of its latent vectors where the queries' weight would be.
enum { LAYER_SCALE, LAYER_NORM_EPS, LAYER_SOFTCAP, LAYER_ROPE_MAGNITUDE, LAYER_QUERY_NORM };

template <int D>
FUNCTION const DEVICE float* layer_key_norm(const DEVICE float* layer) {
  return layer + LAYER_QUERY_NORM + D;
}

template <int D>
FUNCTION const DEVICE float* layer_value_norm(const DEVICE float* layer) {
  return layer + LAYER_QUERY_NORM + 2 * D;
}

template <int D>
FUNCTION const DEVICE float* layer_wavelengths(const DEVICE float* layer) {
  return layer + LAYER_QUERY_NORM + 3 * D;
}

template <int D, int ROTARY_DIMS>
FUNCTION const DEVICE float* layer_sinks(const DEVICE float* layer) {
  return layer_wavelengths<D>(layer) + ROTARY_DIMS / 2;
}

/** Whether a token's sequence has more than LONG_BEYOND tokens: packPlaces then inverts the slot's bits. */
template <int LONG_BEYOND>
FUNCTION bool is_long_slot(int packed) {
  return LONG_BEYOND > 0 && packed < 0;
}

template <int LONG_BEYOND>
FUNCTION int slot_of(int packed) {
  return is_long_slot<LONG_BEYOND>(packed) ? ~packed : packed;
}

struct LayerRope {
  const DEVICE float* wavelengths;
  float magnitude;
};

/** Returns the RoPE wavelengths and magnitude of a token. SINKS is the number of attention sinks. */
template <int D, int ROTARY_DIMS, int LONG_BEYOND, int SINKS>
FUNCTION LayerRope layer_rope(const DEVICE float* layer, bool is_long) {
  if (LONG_BEYOND == 0 || !is_long) return {layer_wavelengths<D>(layer), layer[LAYER_ROPE_MAGNITUDE]};
  const DEVICE float* wavelengths = layer_sinks<D, ROTARY_DIMS>(layer) + SINKS;
  return {wavelengths, wavelengths[ROTARY_DIMS / 2]};
}

/**
 * Returns the first position that the token at `position` attends to. WINDOW is 0 if there is no window; CHUNKED
 * means attention within chunks of WINDOW tokens (Llama 4) instead of a sliding window.
 */
template <int WINDOW, bool CHUNKED>
FUNCTION int oldest_seen(int position) {
  constexpr int SIZE = WINDOW > 0 ? WINDOW : 1;
  if (WINDOW == 0 || position < WINDOW) return 0;
  return CHUNKED ? position - position % SIZE : position - SIZE + 1;
}
