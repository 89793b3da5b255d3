// What a layer does to heads and scores: one array of floats, as `PackedLayers` (paged-attention.ts) writes it.
// After the four below come the weights of the queries', the keys' and the values' norm (D each), the wavelengths of
// the rotary embedding (ROTARY_DIMS / 2), and the attention sinks (one per query head). Latent attention has the norm of
// its vectors in the place of the queries'.
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

/**
 * The oldest token that the one at `position` attends to. With CHUNKED its window begins at a multiple of the
 * window's size, and not that many tokens ago.
 */
template <int WINDOW, bool CHUNKED>
FUNCTION int oldest_seen(int position) {
  constexpr int SIZE = WINDOW > 0 ? WINDOW : 1;
  if (WINDOW == 0 || position < WINDOW) return 0;
  return CHUNKED ? position - position % SIZE : position - SIZE + 1;
}
