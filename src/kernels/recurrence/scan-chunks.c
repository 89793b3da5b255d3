// Prefill of the gated delta rule in chunks of 32 tokens (chunkwise parallel form), with tensor cores; CUDA only. It
// computes the same as scan.c with the delta rule and one decay per head, but tokens of a chunk do not wait for each
// other's state. With g the cumulative log decay within the chunk up to a token, and S the state before the chunk:
//
//     A_ij = beta_i exp(g_i - g_j) k_i k_j for j < i        (I + A) U = beta (V - exp(g) K S^T)
//     P_ij = exp(g_i - g_j) q_i k_j for j <= i              outputs = exp(g) Q S^T + P U
//     S after the chunk = exp(g_last) S + sum of exp(g_last - g_j) u_j k_j^T
//
// A CTA has one head of one sequence. The first VALUE_DIM / 16 warps keep 16 value features of the state each in
// registers. They compute everything transposed, (values, tokens), so that one product's accumulators are the next
// one's operand and no warp needs another one's results. The other four warps, the scorers, run one chunk ahead: they
// stage queries and keys in shared memory, compute A and P, which do not depend on the state, and invert the diagonal
// 16x16 blocks of I + A. They also norm and write the previous chunk's outputs. Rows in shared memory are padded by
// 16 bytes, so that ldmatrix reads eight rows without bank conflicts.
//
// Inputs, output and template arguments: those of scan.c, without SKIP, BY_FEATURE and WARPS; T of 16 bits, KEY_DIM
// and VALUE_DIM multiples of 16 up to 128, all columns and widths multiples of 8.
// Grid: (1, HEADS, sequences) CTAs of VALUE_DIM / 16 + 4 warps, with dynamic shared memory for 4 * 32 rows of keys
// and 2 * 32 of values.
#include "cuda-instructions.h"
#include "moves.h"
#include "scan.h"
  constexpr int CHUNK = 32, VALUE_WARPS = VALUE_DIM / 16, STEPS_OF_KEYS = KEY_DIM / 16;
  constexpr int KEY_BYTES = (KEY_DIM + 8) * 2, VALUE_BYTES = (VALUE_DIM + 8) * 2, OUTPUT_STRIDE = VALUE_DIM + 4;
  constexpr float log2e = 1.44269504f;
  struct alignas(8) Two {
    float x[2];
  };
  /** The gates of one token: its beta, its g to base 2, exp(g), and exp(g_last - g). */
  struct alignas(16) Gate {
    float beta, power, passed, left;
  };
  const int head = cta_y, key_head = head / (HEADS / KEY_HEADS);
  // Starts with the last rows of the step: prompt chunks, which take longest and come after decoding rows.
  const int* move = move_of(moves, moves[0] - 1 - cta_z);
  const int first = move[MOVE_FIRST], count = move[MOVE_COUNT], chunks = (count + CHUNK - 1) / CHUNK;
  auto blocks_of = [&](int chunk) { return count - chunk * CHUNK > 16 ? 2 : 1; };
  // Double-buffered operands of a chunk.
  const unsigned memory = dynamic_shared_memory();
  auto keys_at = [&](int chunk) { return memory + chunk % 2 * CHUNK * KEY_BYTES; };
  auto queries_at = [&](int chunk) { return memory + (2 + chunk % 2) * CHUNK * KEY_BYTES; };
  auto values_at = [&](int chunk) { return memory + 4 * CHUNK * KEY_BYTES + chunk % 2 * CHUNK * VALUE_BYTES; };
  SHARED Gate gates[2][CHUNK];
  // Blocks (0, 0), (1, 0) and (1, 1) of 16x16 numbers, in the register layout of an MMA operand. `solutions`:
  // inverses of the diagonal blocks of I + A, and -A below the diagonal. `scores`: P.
  SHARED uint4 solutions[2][3][32], scores[2][3][32];
  SHARED Four triangles[2][16 * 5];
  SHARED float outputs[CHUNK * OUTPUT_STRIDE];
  const int high = lane / 4, low = lane % 4 * 2;
  // Addresses of this lane's rows for ldmatrix. `by_rows`: 16 rows, then their next 8 columns. `by_columns`: 8 rows,
  // their next 8 columns, then both for the next 8 rows.
  const int by_rows = lane % 16, by_columns = lane / 16 * 8 + lane % 8;

  if (warp >= VALUE_WARPS) {
    // Sixteen lanes load a row together.
    const int own = warp - VALUE_WARPS, pack = lane % 16;
    const bool has_keys = pack < KEY_DIM / 8, has_values = pack < VALUE_DIM / 8;
    uint4 key_rows[4], query_rows[4];
    float step = 0, beta = 0;
    auto row_of_pass = [&](int i) { return own * 8 + i * 2 + lane / 16; };
    auto load = [&](int chunk) {
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        const int t = chunk * CHUNK + row_of_pass(i);
        const T* from = x + long(first + t) * WIDTH + key_head * KEY_DIM + pack * 8;
        key_rows[i] = query_rows[i] = uint4{0, 0, 0, 0};
        if (t >= count || !has_keys) continue;
        key_rows[i] = *reinterpret_cast<const uint4*>(from + KEYS);
        query_rows[i] = *reinterpret_cast<const uint4*>(from + QUERIES);
      }
      const int t = chunk * CHUNK + lane;
      if (own > 0 || t >= count) return;
      const long token = first + t;
      step = RAW ? float(raw[token * RAW_WIDTH + STEPS + head]) : float(decays[token * HEADS + head]);
      beta = !RAW        ? float(betas[token * HEADS + head])
          : HAS_BETAS    ? float(raw[token * RAW_WIDTH + BETAS + head])
                         : 0.0f;
    };
    auto stage_row = [&](unsigned to, const uint4& row, float scale) {
      const T* elements = reinterpret_cast<const T*>(&row);
      float each[8], squares = 0;
      #pragma unroll
      for (int j = 0; j < 8; j++) {
        each[j] = float(elements[j]);
        squares += each[j] * each[j];
      }
      if (NORMED) {
        #pragma unroll
        for (int mask = 8; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
        // Rows past the last token are zero and must stay zero.
        const float factor = squares == 0 ? 0 : RSQRT(squares / KEY_DIM + numbers[NORM_EPS]) * scale;
        #pragma unroll
        for (int j = 0; j < 8; j++) each[j] *= factor;
      }
      if (!has_keys) return;
      store_shared(to, uint4{pack_pair(each[0], each[1], x), pack_pair(each[2], each[3], x),
                             pack_pair(each[4], each[5], x), pack_pair(each[6], each[7], x)});
    };
    auto stage = [&](int chunk) {
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        const unsigned row = row_of_pass(i) * KEY_BYTES + pack * 16;
        stage_row(keys_at(chunk) + row, key_rows[i], numbers[KEY_SCALE]);
        stage_row(queries_at(chunk) + row, query_rows[i], numbers[QUERY_SCALE]);
      }
      if (own > 0) return;
      Gate gate = {};
      float power = 0;
      if (chunk * CHUNK + lane < count) {
        const float size =
            RAW ? step_size(step * numbers[STEP_FACTOR] + float(bias[head]), numbers) : 0.0f;
        power = RAW ? float(rate[head]) * size : logf(step);
        // Clamps: exp(-80) is practically 0, and a decay of 0 (logarithm -infinity) would make differences NaN.
        if (power < -80) power = -80;
        gate.beta = !RAW ? beta : HAS_BETAS ? numbers[BETA_FACTOR] / (1.0f + EXP(-beta)) : size;
      }
      power *= log2e;
      #pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const float before = __shfl_sync(~0u, power, (lane - distance) & 31);
        if (lane >= distance) power += before;
      }
      gate.power = power;
      gate.passed = ex2_approx(power);
      gate.left = ex2_approx(__shfl_sync(~0u, power, 31) - power);
      gates[chunk % 2][lane] = gate;
    };

    /** Computes a 16x16 block of A (`is_key`) or P. */
    auto score = [&](int chunk, int row, int column, bool is_key) {
      const unsigned at = is_key ? keys_at(chunk) : queries_at(chunk);
      const unsigned rows = at + (row * 16 + by_rows) * KEY_BYTES + lane / 16 * 16;
      const unsigned columns = keys_at(chunk) + (column * 16 + by_columns) * KEY_BYTES + lane / 8 % 2 * 16;
      // Two accumulators per product, which halves the chain of dependent MMAs.
      float sum[2][2][4] = {};
      #pragma unroll
      for (int k = 0; k < STEPS_OF_KEYS; k++) {
        unsigned a[4], b[4];
        ldmatrix_x4<false>(a, rows + k * 32);
        ldmatrix_x4<false>(b, columns + k * 32);
        mma_m16n8k16(sum[k % 2][0], a[0], a[1], a[2], a[3], b[0], b[1], x);
        mma_m16n8k16(sum[k % 2][1], a[0], a[1], a[2], a[3], b[2], b[3], x);
      }
      const Gate* gate = gates[chunk % 2];
      float block[2][4];
      #pragma unroll
      for (int e = 0; e < 8; e++) {
        const int i = row * 16 + high + e % 4 / 2 * 8, j = column * 16 + e / 4 * 8 + low + e % 2;
        const float factor = ex2_approx(gate[i].power - gate[j].power) * (is_key ? gate[i].beta : 1.0f);
        const float all = sum[0][e / 4][e % 4] + sum[1][e / 4][e % 4];
        block[e / 4][e % 4] = j < i + !is_key ? all * factor : 0;
      }
      if (is_key && row == column) {
        #pragma unroll
        for (int e = 0; e < 4; e++) {
          const int i = high + e % 2 * 8, j = e / 2 * 8 + low;
          float* to = triangles[row][i * 5 + j / 4].x + j % 4;
          *reinterpret_cast<Two*>(to) = {block[e / 2][e % 2 * 2], block[e / 2][e % 2 * 2 + 1]};
        }
        return;
      }
      const float sign = is_key ? -1 : 1;
      (is_key ? solutions : scores)[chunk % 2][row + column][lane] = uint4{
          pack_pair(sign * block[0][0], sign * block[0][1], x), pack_pair(sign * block[1][0], sign * block[1][1], x),
          pack_pair(sign * block[0][2], sign * block[0][3], x), pack_pair(sign * block[1][2], sign * block[1][3], x)};
    };
    /** Inverts a diagonal block of I + A by forward substitution, one column per lane. */
    auto invert = [&](int chunk, int block) {
      __syncwarp();
      const int j = lane % 16;
      float column[16];
      #pragma unroll
      for (int i = 0; i < 16; i++) {
        float sum = i == j ? 1 : 0;
        #pragma unroll
        for (int m = 0; m < i; m += 4) {
          const Four four = triangles[block][i * 5 + m / 4];
          #pragma unroll
          for (int k = 0; k < 4 && m + k < i; k++) sum -= four.x[k] * column[m + k];
        }
        column[i] = sum;
      }
      if (lane >= 16) return;
      T* to = reinterpret_cast<T*>(solutions[chunk % 2][block * 2]);
      #pragma unroll
      for (int i = 0; i < 16; i++)
        to[(i % 8 * 4 + j % 8 / 2) * 8 + (i / 8 * 2 + j / 8) * 2 + j % 2] = T(column[i]);
    };
    auto score_all = [&](int chunk) {
      const int blocks = blocks_of(chunk);
      if (own < 2) {
        if (own >= blocks) return;
        score(chunk, own, own, true);
        invert(chunk, own);
        return;
      }
      // Scorer 2 computes the block below the diagonal of A and of P, scorer 3 P's diagonal blocks.
      #pragma unroll 1
      for (int i = 0; i < 2; i++) {
        const int row = own == 2 ? 1 : i;
        if (row < blocks) score(chunk, row, own == 2 ? 0 : i, own == 2 && i == 0);
      }
    };

    uint4 gate_rows[4];
    auto load_gates = [&](int chunk) {
      const T* columns = reinterpret_cast<const T*>(raw) + GATES + head * VALUE_DIM + pack * 8;
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        const int t = chunk * CHUNK + row_of_pass(i);
        gate_rows[i] = uint4{0, 0, 0, 0};
        if (t >= count || !has_values) continue;
        gate_rows[i] = *reinterpret_cast<const uint4*>(columns + long(first + t) * RAW_WIDTH);
      }
    };
    auto write_outputs = [&](int chunk) {
      // The norm's weights are loaded again for every chunk, because there are not enough registers to keep them.
      float weights[8];
      #pragma unroll
      for (int j = 0; j < 8; j++) weights[j] = NORM_OUTPUT && has_values ? float(weight[pack * 8 + j]) : 0.0f;
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = row_of_pass(i), t = chunk * CHUNK + row;
        const T* elements = reinterpret_cast<const T*>(&gate_rows[i]);
        float each[8] = {}, squares = 0;
        #pragma unroll
        for (int j = 0; j < 8; j++) {
          if (has_values && t < count) each[j] = outputs[row * OUTPUT_STRIDE + pack * 8 + j];
          squares += each[j] * each[j];
        }
        if (NORM_OUTPUT) {
          #pragma unroll
          for (int mask = 8; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
          const float scale = RSQRT(squares / VALUE_DIM + numbers[OUTPUT_EPS]);
          #pragma unroll
          for (int j = 0; j < 8; j++) {
            const float gate = float(elements[j]);
            each[j] *= scale * weights[j] * DIVIDE(gate, 1.0f + EXP(-gate));
          }
        }
        if (t >= count || !has_values) continue;
        T* to = read + (long(first + t) * HEADS + head) * VALUE_DIM + pack * 8;
        *reinterpret_cast<uint4*>(to) =
            uint4{pack_pair(each[0], each[1], x), pack_pair(each[2], each[3], x),
                  pack_pair(each[4], each[5], x), pack_pair(each[6], each[7], x)};
      }
    };

    load(0);
    #pragma unroll 1
    for (int chunk = -1;; chunk++) {
      if (NORM_OUTPUT && chunk > 0) load_gates(chunk - 1);
      if (chunk + 1 < chunks) {
        stage(chunk + 1);
        load(chunk + 2);
      }
      if (chunk > 0) write_outputs(chunk - 1);
      if (chunk == chunks) break;
      BARRIER;
      if (chunk + 1 < chunks) score_all(chunk + 1);
      BARRIER;
    }
    return;
  }

  const int from = move[MOVE_FROM];
  // States, written in place. MLX assumes inputs constant, but no other warp touches these rows in this launch.
  float* own_states = const_cast<float*>(pool) + (long(head) * VALUE_DIM + warp * 16 + high) * KEY_DIM + low;
  const long size = long(HEADS) * VALUE_DIM * KEY_DIM;
  auto state_at = [&](int slot, int i) {
    return reinterpret_cast<Two*>(own_states + slot * size + i % 2 * 8 * KEY_DIM + i / 2 * 8);
  };
  float state[KEY_DIM / 8][4];
  #pragma unroll
  for (int i = 0; i < KEY_DIM / 4; i++) {
    Two two = {};
    if (from >= 0) two = *state_at(from, i);
    state[i / 2][i % 2 * 2] = two.x[0];
    state[i / 2][i % 2 * 2 + 1] = two.x[1];
  }
  // Starts to copy a chunk's values, one token per lane.
  auto fetch = [&](int chunk) {
    const int t = chunk * CHUNK + lane;
    const T* values = x + long(first + (t < count ? t : 0)) * WIDTH + VALUES + head * VALUE_DIM + warp * 16;
    for (int i = 0; i < 2; i++)
      cp_async(values_at(chunk) + lane * VALUE_BYTES + warp * 32 + i * 16, values + i * 8, t < count ? 16 : 0);
    cp_async_commit();
  };
  #pragma unroll 1
  for (int chunk = -1; chunk < chunks; chunk++) {
    if (chunk + 1 < chunks) fetch(chunk + 1);
    // Products of keys (`found`) and queries (`sum`) with the state, transposed: (values, tokens).
    float found[4][4] = {}, sum[4][4] = {};
    if (chunk >= 0) {
      const unsigned columns = by_columns * KEY_BYTES + lane / 8 % 2 * 16;
      #pragma unroll
      for (int k = 0; k < STEPS_OF_KEYS; k++) {
        unsigned a[4], b[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
          const float* two = state[2 * k + i / 2] + i % 2 * 2;
          a[i] = pack_pair(two[0], two[1], x);
        }
        #pragma unroll
        for (int i = 0; i < 2; i++) {
          ldmatrix_x4<false>(b, keys_at(chunk) + columns + i * 16 * KEY_BYTES + k * 32);
          mma_m16n8k16(found[2 * i], a[0], a[1], a[2], a[3], b[0], b[1], x);
          mma_m16n8k16(found[2 * i + 1], a[0], a[1], a[2], a[3], b[2], b[3], x);
          ldmatrix_x4<false>(b, queries_at(chunk) + columns + i * 16 * KEY_BYTES + k * 32);
          mma_m16n8k16(sum[2 * i], a[0], a[1], a[2], a[3], b[0], b[1], x);
          mma_m16n8k16(sum[2 * i + 1], a[0], a[1], a[2], a[3], b[2], b[3], x);
        }
      }
    }
    BARRIER;
    if (chunk >= 0) {
      const Gate* gate = gates[chunk % 2];
      const int blocks = blocks_of(chunk);
      #pragma unroll
      for (int i = 0; i < KEY_DIM / 2; i++) state[i / 4][i % 4] *= gate[CHUNK - 1].passed;
      unsigned added[2][4];
      #pragma unroll
      for (int block = 0; block < 2; block++) {
        if (block >= blocks) break;
        Gate own[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) own[i] = gate[block * 16 + i / 2 * 8 + low + i % 2];
        unsigned value[4], right[4], last[4];
        ldmatrix_x4<true>(
            value, values_at(chunk) + (block * 16 + by_columns) * VALUE_BYTES + lane / 8 % 2 * 16 + warp * 32);
        #pragma unroll
        for (int e = 0; e < 8; e++) {
          const Gate& its = own[e / 4 * 2 + e % 2];
          float& each = found[block * 2 + e / 4][e % 4];
          each = its.beta * (float(reinterpret_cast<const T*>(&value[e / 2])[e % 2]) - its.passed * each);
          sum[block * 2 + e / 4][e % 4] *= its.passed;
        }
        const uint4 solution = solutions[chunk % 2][block * 2][lane];
        if (block == 1) {
          const uint4 below = solutions[chunk % 2][1][lane];
          const unsigned(&a)[4] = added[0];
          mma_m16n8k16(found[2], a[0], a[1], a[2], a[3], below.x, below.y, x);
          mma_m16n8k16(found[3], a[0], a[1], a[2], a[3], below.z, below.w, x);
        }
        #pragma unroll
        for (int i = 0; i < 4; i++) {
          const float* two = found[block * 2 + i / 2] + i % 2 * 2;
          right[i] = pack_pair(two[0], two[1], x);
        }
        float solved[2][4] = {};
        mma_m16n8k16(solved[0], right[0], right[1], right[2], right[3], solution.x, solution.y, x);
        mma_m16n8k16(solved[1], right[0], right[1], right[2], right[3], solution.z, solution.w, x);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
          const float* two = solved[i / 2] + i % 2 * 2;
          added[block][i] = pack_pair(two[0], two[1], x);
          last[i] = pack_pair(two[0] * own[i / 2 * 2].left, two[1] * own[i / 2 * 2 + 1].left, x);
        }
        #pragma unroll
        for (int column = 0; column <= block; column++) {
          const uint4 p = scores[chunk % 2][block + column][lane];
          const unsigned(&a)[4] = added[column];
          mma_m16n8k16(sum[block * 2], a[0], a[1], a[2], a[3], p.x, p.y, x);
          mma_m16n8k16(sum[block * 2 + 1], a[0], a[1], a[2], a[3], p.z, p.w, x);
        }
        const unsigned rows = keys_at(chunk) + (block * 16 + by_rows) * KEY_BYTES + lane / 16 * 16;
        #pragma unroll
        for (int n = 0; n < STEPS_OF_KEYS; n++) {
          unsigned b[4];
          ldmatrix_x4<true>(b, rows + n * 32);
          mma_m16n8k16(state[2 * n], last[0], last[1], last[2], last[3], b[0], b[1], x);
          mma_m16n8k16(state[2 * n + 1], last[0], last[1], last[2], last[3], b[2], b[3], x);
        }
        #pragma unroll
        for (int e = 0; e < 8; e++) {
          const int token = block * 16 + e / 4 * 8 + low + e % 2, own_value = warp * 16 + high + e % 4 / 2 * 8;
          outputs[token * OUTPUT_STRIDE + own_value] = sum[block * 2 + e / 4][e % 4];
        }
      }
    }
    cp_async_wait();
    BARRIER;
  }
  #pragma unroll
  for (int i = 0; i < KEY_DIM / 4; i++)
    *state_at(move[MOVE_TO], i) = {state[i / 2][i % 2 * 2], state[i / 2][i % 2 * 2 + 1]};
