// Latent attention (MLA) with tensor cores; CUDA only. A CTA has up to 16 * ROW_TILES rows: query
// heads of one token, or of a few consecutive tokens of one sequence. It walks the sequence one KV
// block (a tile of 32 tokens) at a time, double-buffered in shared memory with cp.async. Rows in
// shared memory are padded by 16 bytes, so that ldmatrix reads eight rows without bank conflicts.
//
// A team of TEAM warps shares 16 rows. For the scores each warp multiplies its part of the
// features, and the team adds up the partial scores through shared memory. Each warp then has all
// scores of the rows, and accumulates its part of the value columns.
#include "cuda-instructions.h"
#include "latent.h"

/** A tile of tokens is one KV block. */
constexpr int TILE_TOKENS = 32;

/** A warp's queries, accumulators and softmax. A lane has rows lane / 4 and lane / 4 + 8 of the warp's 16. */
template <typename Type, int LATENT_FEATURES, int ROTARY_FEATURES, int ROW_TILES, int WARPS_OF_TEAM>
struct LatentRows {
  typedef Type T;
  static constexpr int LATENT = LATENT_FEATURES, D = LATENT_FEATURES + ROTARY_FEATURES, TEAM = WARPS_OF_TEAM;
  static constexpr int THREADS = ROW_TILES * TEAM * 32, STRIDE = (D + 8) * 2;
  /** A warp's part of the features: STEPS times 16 query features, and COLUMNS of the values. */
  static constexpr int STEPS = (D / 16 + TEAM - 1) / TEAM, COLUMNS = LATENT / TEAM;
  unsigned query[STEPS][4];
  float sum[COLUMNS / 8][4], top[2], total[2];
};

/** RoPE rotation of a pair of features. */
struct Rotation {
  float sine, cosine;
};

/** A row's query: latent features, rotary features and their rotations. The pointers are null for unused rows. */
template <typename T>
struct LatentQuery {
  const T* absorbed;
  const T* placed;
  const Rotation* rotations;
};

/**
 * Computes the RoPE rotations of `count` positions from `position` on, into the end of attend_tiles' shared memory,
 * which is unused until then. This is a separate rolled loop: inlined into the unrolled query loads, it made
 * instruction fetch take most of the launch.
 */
template <typename Rows>
FUNCTION const Rotation* compute_rotations(unsigned memory, const float* layer, int position, int count, int thread_index) {
  constexpr int PAIRS = (Rows::D - Rows::LATENT) / 2;
  Rotation* rotations = static_cast<Rotation*>(shared_pointer(memory + 2 * TILE_TOKENS * Rows::STRIDE));
  const float magnitude = layer[LAYER_ROPE_MAGNITUDE];
  #pragma unroll 1
  for (int i = thread_index; i < count * PAIRS; i += Rows::THREADS) {
    float sine, cosine;
    SINCOS(float(position + i / PAIRS) / layer_wavelengths<Rows::LATENT>(layer)[i % PAIRS], sine, cosine);
    rotations[i] = {sine * magnitude, cosine * magnitude};
  }
  return rotations;
}

/** Returns features `d` and `d` + 1 of a query, with RoPE applied. */
template <int LATENT, bool ROTATED, typename T>
FUNCTION unsigned query_pair(const LatentQuery<T>& query, int d) {
  if (d < LATENT) return *reinterpret_cast<const unsigned*>(query.absorbed + d);
  const T* placed = query.placed + (d - LATENT);
  if (!ROTATED) return *reinterpret_cast<const unsigned*>(placed);
  const Rotation by = query.rotations[(d - LATENT) / 2];
  const float a = float(placed[0]), b = float(placed[1]);
  return pack_pair(a * by.cosine - b * by.sine, a * by.sine + b * by.cosine, query.placed);
}

/** Loads the `part`-th range of query features for the lane's two rows, and resets softmax and accumulators. */
template <bool ROTATED, typename Rows>
FUNCTION void begin_rows(
    Rows& rows, const LatentQuery<typename Rows::T> (&queries)[2], int part, int lane) {
  #pragma unroll
  for (int i = 0; i < Rows::STEPS * 4; i++) {
    const int step = part * Rows::STEPS + i / 4, row = i % 2, d = step * 16 + lane % 4 * 2 + i % 4 / 2 * 8;
    const bool is_inside = queries[row].absorbed != nullptr && d < Rows::D;
    rows.query[i / 4][i % 4] = is_inside ? query_pair<Rows::LATENT, ROTATED>(queries[row], d) : 0;
  }
  #pragma unroll
  for (int i = 0; i < Rows::COLUMNS / 2; i++) rows.sum[i / 4][i % 4] = 0;
  for (int row = 0; row < 2; row++) {
    rows.top[row] = -1e30f;
    rows.total[row] = 0;
  }
}

/** Starts to copy a KV block to shared address `to`. Tokens from index `count` on are zero-filled. */
template <typename Rows>
FUNCTION void fetch_tile(unsigned to, const typename Rows::T* pool, int block, int count, int thread_index) {
  constexpr int PACKS = Rows::D / 8, ALL = TILE_TOKENS * PACKS;
  const typename Rows::T* from = pool + long(block) * TILE_TOKENS * Rows::D;
  #pragma unroll
  for (int i = 0; i < ALL; i += Rows::THREADS) {
    const int c = i + thread_index, token = c / PACKS;
    if (ALL % Rows::THREADS > 0 && c >= ALL) break;
    cp_async(to + token * Rows::STRIDE + c % PACKS * 16, from + c * 8, token < count ? 16 : 0);
  }
  cp_async_commit();
}

/**
 * Attends to the tokens of a range, which starts at a block boundary and whose first tile is already being copied.
 * `memory`: two tiles, then per thread 16 bytes of partial scores for every 8 tokens of a tile. `last`: the last
 * position that each of a lane's two rows attends to.
 */
template <typename Rows>
FUNCTION void attend_tiles(
    Rows& rows, const typename Rows::T* pool, const int* table, TokenRange range, const int (&last)[2],
    const float* layer, unsigned memory, int lane, int warp, int thread_index) {
  constexpr int STRIDE = Rows::STRIDE, TEAM = Rows::TEAM, SCORES = TILE_TOKENS / 8;
  const typename Rows::T* type = nullptr;
  const int part = warp % TEAM;
  const unsigned partial_scores = memory + 2 * TILE_TOKENS * STRIDE;
  // ldmatrix_x4 addresses of this lane. Keys: 8 rows of 8 columns, their next 8 columns, both for the next 8 rows.
  const unsigned own_key = (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 16 + part * Rows::STEPS * 32;
  const unsigned own_value = lane % 16 * STRIDE + lane / 16 * 16 + part * Rows::COLUMNS * 2;
  const float scale = layer[LAYER_SCALE] * 1.44269504f; // log2(e): the softmax uses powers of 2
  int next_block = table[min(range.begin + TILE_TOKENS, range.end - 1) / TILE_TOKENS];
  for (int base = range.begin; base < range.end; base += TILE_TOKENS) {
    const int next = base + TILE_TOKENS;
    const unsigned tile = memory + base / TILE_TOKENS % 2 * TILE_TOKENS * STRIDE;
    const unsigned next_tile = memory + next / TILE_TOKENS % 2 * TILE_TOKENS * STRIDE;
    cp_async_wait();
    BARRIER;
    if (next < range.end) fetch_tile<Rows>(next_tile, pool, next_block, range.end - next, thread_index);
    next_block = table[min(next + TILE_TOKENS, range.end - 1) / TILE_TOKENS];
    float score[SCORES][4] = {};
    #pragma unroll
    for (int i = 0; i < Rows::STEPS; i++) {
      if (Rows::D / 16 % TEAM > 0 && part * Rows::STEPS + i >= Rows::D / 16) break;
      const unsigned(&q)[4] = rows.query[i];
      unsigned b[SCORES / 2][4];
      #pragma unroll
      for (int n = 0; n < SCORES / 2; n++) ldmatrix_x4<false>(b[n], tile + own_key + n * 16 * STRIDE + i * 32);
      #pragma unroll
      for (int n = 0; n < SCORES; n++)
        mma_m16n8k16(score[n], q[0], q[1], q[2], q[3], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1], type);
    }
    #pragma unroll
    for (int n = 0; n < SCORES; n++) store_shared(partial_scores + ((warp * SCORES + n) * 32 + lane) * 16, score[n]);
    BARRIER;
    #pragma unroll
    for (int n = 0; n < SCORES; n++) {
      for (int r = 0; r < 4; r++) score[n][r] = 0;
      // All warps of the team add the partial scores in the same order, so that their sums are identical.
      #pragma unroll
      for (int w = 0; w < TEAM; w++)
        add_shared(score[n], partial_scores + (((warp - part + w) * SCORES + n) * 32 + lane) * 16);
    }
    #pragma unroll
    for (int row = 0; row < 2; row++) {
      float most = rows.top[row];
      #pragma unroll
      for (int j = 0; j < SCORES * 2; j++) {
        float& x = score[j / 2][row * 2 + j % 2];
        if (base + j / 2 * 8 + lane % 4 * 2 + j % 2 > last[row]) x = -3e38f;
        most = fmaxf(most, x);
      }
      most = fmaxf(most, SHUFFLE_XOR(most, 1));
      most = fmaxf(most, SHUFFLE_XOR(most, 2));
      const float keep = ex2_approx((rows.top[row] - most) * scale);
      rows.top[row] = most;
      rows.total[row] *= keep;
      #pragma unroll
      for (int j = 0; j < SCORES * 2; j++) {
        float& x = score[j / 2][row * 2 + j % 2];
        x = ex2_approx((x - most) * scale);
        rows.total[row] += x;
      }
      #pragma unroll
      for (int j = 0; j < Rows::COLUMNS / 4; j++) rows.sum[j / 2][row * 2 + j % 2] *= keep;
    }
    #pragma unroll
    for (int k = 0; k < TILE_TOKENS / 16; k++) {
      unsigned a[4], b[4];
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* x = score[2 * k + i / 2] + i % 2 * 2;
        a[i] = pack_pair(x[0], x[1], type);
      }
      #pragma unroll
      for (int n = 0; n < Rows::COLUMNS / 16; n++) {
        ldmatrix_x4<true>(b, tile + own_value + k * 16 * STRIDE + n * 32);
        mma_m16n8k16(rows.sum[2 * n], a[0], a[1], a[2], a[3], b[0], b[1], type);
        mma_m16n8k16(rows.sum[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3], type);
      }
    }
  }
  for (int row = 0; row < 2; row++) {
    rows.total[row] += SHUFFLE_XOR(rows.total[row], 1);
    rows.total[row] += SHUFFLE_XOR(rows.total[row], 2);
  }
}

template <typename T>
FUNCTION void store_pair(T* to, float x, float y, const T* type) {
  *reinterpret_cast<unsigned*>(to) = pack_pair(x, y, type);
}

template <typename T>
FUNCTION void store_pair(float* to, float x, float y, const T*) {
  to[0] = x;
  to[1] = y;
}

/**
 * Writes this lane's part of its row `row` (0 or 1) as row `index` of `out` (rows, LATENT). If SPLITS is above 1,
 * `out` is (rows, SPLITS, LATENT + 2) and gets partial results, as in store_latent.
 */
template <int SPLITS, typename Rows, typename Out>
FUNCTION void store_row(
    const Rows& rows, int row, long index, int split, const float* layer, int part, int lane, Out* out) {
  const typename Rows::T* type = nullptr;
  constexpr int LATENT = Rows::LATENT;
  Out* to = out + (SPLITS == 1 ? index * LATENT : (index * SPLITS + split) * (LATENT + 2));
  const float factor = SPLITS == 1 ? 1 / rows.total[row] : 1;
  #pragma unroll
  for (int j = 0; j < Rows::COLUMNS / 8; j++) {
    const float* x = rows.sum[j] + row * 2;
    store_pair(to + part * Rows::COLUMNS + j * 8 + lane % 4 * 2, x[0] * factor, x[1] * factor, type);
  }
  if (SPLITS > 1 && part == 0 && lane % 4 == 0)
    store_pair(to + LATENT, rows.top[row] * layer[LAYER_SCALE], rows.total[row], type);
}
