// Latent attention by tensor cores; CUDA only. A group of warps has up to 16 ROW_TILES rows: heads of one token, or of
// a few consecutive tokens of one sequence. It goes over the sequence block by block, a tile of 32 tokens in shared
// memory, while the next is being copied there. A row is 16 bytes longer there than a vector: so the eight rows that
// are read at once are in banks of their own.
//
// A team of TEAM warps shares 16 rows. Each multiplies its part of the features of queries and keys, and adds up what
// the whole team has found, through shared memory. So all know all scores of their rows, and each sums its part of the
// values' columns.
#include "cuda-instructions.h"
#include "latent.h"

/** A tile of tokens is a block. */
constexpr int TILE_TOKENS = 32;

/** What a warp has: a lane those of row lane / 4 and of the one 8 behind it. */
template <typename Type, int LATENT_FEATURES, int ROTARY_FEATURES, int ROW_TILES, int WARPS_OF_TEAM>
struct LatentRows {
  typedef Type T;
  static constexpr int LATENT = LATENT_FEATURES, D = LATENT_FEATURES + ROTARY_FEATURES, TEAM = WARPS_OF_TEAM;
  static constexpr int THREADS = ROW_TILES * TEAM * 32, STRIDE = (D + 8) * 2;
  /** Of 16 features each, how many of a query a warp has, and the columns of values that it sums. */
  static constexpr int STEPS = (D / 16 + TEAM - 1) / TEAM, COLUMNS = LATENT / TEAM;
  unsigned query[STEPS][4];
  float sum[COLUMNS / 8][4], top[2], total[2];
};

/** How a pair of features is turned. */
struct Rotation {
  float sine, cosine;
};

/** A row's query: its latent features, and those with a position, with what turns each pair. Null where there is none. */
template <typename T>
struct LatentQuery {
  const T* absorbed;
  const T* placed;
  const Rotation* rotations;
};

/**
 * What turns each pair of features at `count` positions, from `position` on, to the end of the shared memory of
 * attend_tiles, which is free until then. Each is computed once and by one loop: within the unrolled reading of queries
 * it took most of a launch to fetch the instructions.
 */
template <typename Rows>
FUNCTION const Rotation* find_rotations(unsigned memory, const float* layer, int position, int count, int thread_index) {
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

/** Features `d` and `d` + 1 of a query, rotated to its position. */
template <int LATENT, bool ROTATED, typename T>
FUNCTION unsigned query_pair(const LatentQuery<T>& query, int d) {
  if (d < LATENT) return *reinterpret_cast<const unsigned*>(query.absorbed + d);
  const T* placed = query.placed + (d - LATENT);
  if (!ROTATED) return *reinterpret_cast<const unsigned*>(placed);
  const Rotation by = query.rotations[(d - LATENT) / 2];
  const float a = float(placed[0]), b = float(placed[1]);
  return pack_pair(a * by.cosine - b * by.sine, a * by.sine + b * by.cosine, query.placed);
}

/** The queries of a lane's two rows; `part` of the features is this warp's. */
template <bool ROTATED, typename Rows>
FUNCTION void begin_rows(
    Rows& rows, const LatentQuery<typename Rows::T> (&queries)[2], int part, int lane) {
  #pragma unroll
  for (int i = 0; i < Rows::STEPS * 4; i++) {
    const int step = part * Rows::STEPS + i / 4, row = i % 2, d = step * 16 + lane % 4 * 2 + i % 4 / 2 * 8;
    const bool is_there = queries[row].absorbed != nullptr && d < Rows::D;
    rows.query[i / 4][i % 4] = is_there ? query_pair<Rows::LATENT, ROTATED>(queries[row], d) : 0;
  }
  #pragma unroll
  for (int i = 0; i < Rows::COLUMNS / 2; i++) rows.sum[i / 4][i % 4] = 0;
  for (int row = 0; row < 2; row++) {
    rows.top[row] = -1e30f;
    rows.total[row] = 0;
  }
}

/** Starts to copy `block` to the shared memory at `to`. Of it `count` tokens are there; the others become zero. */
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
 * Attends to the tokens of a range that begins with a block, of which the first tile is being fetched to `memory`: two
 * tiles, then 16 bytes a thread and 8 tokens of a tile. `last` is the last position that each of a lane's rows sees.
 */
template <typename Rows>
FUNCTION void attend_tiles(
    Rows& rows, const typename Rows::T* pool, const int* table, TokenRange range, const int (&last)[2],
    const float* layer, unsigned memory, int lane, int warp, int thread_index) {
  constexpr int STRIDE = Rows::STRIDE, TEAM = Rows::TEAM, SCORES = TILE_TOKENS / 8;
  const typename Rows::T* type = nullptr;
  const int part = warp % TEAM;
  const unsigned found = memory + 2 * TILE_TOKENS * STRIDE;
  // Lanes point ldmatrix at its rows: of keys at 8, at their next 8 columns, and the same of the next 8 rows.
  const unsigned own_key = (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 16 + part * Rows::STEPS * 32;
  const unsigned own_value = lane % 16 * STRIDE + lane / 16 * 16 + part * Rows::COLUMNS * 2;
  const float scale = layer[LAYER_SCALE] * 1.44269504f; // of powers of 2
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
    for (int n = 0; n < SCORES; n++) store_shared(found + ((warp * SCORES + n) * 32 + lane) * 16, score[n]);
    BARRIER;
    #pragma unroll
    for (int n = 0; n < SCORES; n++) {
      for (int r = 0; r < 4; r++) score[n][r] = 0;
      // In the same order for all, so that they agree.
      #pragma unroll
      for (int w = 0; w < TEAM; w++)
        add_shared(score[n], found + (((warp - part + w) * SCORES + n) * 32 + lane) * 16);
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
 * Writes what a lane has of its row `row` to `out` (rows, LATENT), or with SPLITS to (rows, SPLITS, LATENT + 2), as
 * store_latent does; it is number `index` there.
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
