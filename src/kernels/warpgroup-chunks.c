// Attends with chunks of prompts by Hopper's wgmma; CUDA with compute capability 9.0 only. A group has a tile as
// chunks.c has it: a few consecutive tokens of one sequence with all their query heads that share a head of keys, a row
// each. Of the two warpgroups each has 64 rows, with their softmax in registers.
//
// Queries, keys and values are in shared memory as wgmma reads them (wgmma-operand.h). While the softmax of KEYS keys is
// computed, the weights of the KEYS before are multiplied with their values; and the keys behind and the values of
// these are being copied. So there are two stages of each.
//
// Inputs: queries (tokens, HEADS, D), prepared by prepare.c, layer (layer.h), keys and values
// (blocks, KV_HEADS, 32, D), tables (packTables), places (packPlaces), tiles (packTiles).
// Output: attended (tokens, HEADS, D).
// Constants: T of 16 bits, D of whole panels, HEADS, KV_HEADS, ROTARY_DIMS, WINDOW, CHUNKED, CAPPED, SINKS of the layer;
// KEYS.
// Groups: (1, KV_HEADS, tiles) of 256 threads with dynamic shared memory for 128 + 4 * KEYS rows, and 1,024 bytes to
// align them.
#include "cuda-instructions.h"
#include "layer.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int HEADS_PER_KV = HEADS / KV_HEADS, THREADS = 256, ROWS = 128, PACKS = D / 8;
  const int first = tiles[2 * group_z], count = tiles[2 * group_z + 1], kv = group_y;
  if (count == 0) return;
  const int position = places[3 * first], newest = position + count - 1;
  const int oldest = oldest_seen<WINDOW, CHUNKED>(position);
  const int* table = tables + 2 + places[3 * first + 2] * (tables[0] + 1);
  const long from = (long(first) * KV_HEADS + kv) * HEADS_PER_KV * D;
  const unsigned queries_at = (dynamic_shared_memory() + 1023) / 1024 * 1024;
  const unsigned stages = queries_at + ROWS * D * 2;
  auto keys_at = [&](int tile) { return stages + tile % 2 * KEYS * D * 2; };
  auto values_at = [&](int tile) { return stages + (2 + tile % 2) * KEYS * D * 2; };
  // A thread copies the same pack of rows that are APART.
  constexpr int APART = THREADS / PACKS;
  const int own_row = thread_index / PACKS, own_pack = thread_index % PACKS;
  // Rows that the tile does not fill repeat the last one's query.
  #pragma unroll
  for (int i = 0; i < ROWS; i += APART) {
    const int row = min(i + own_row, count * HEADS_PER_KV - 1);
    const long at = from + (long(row / HEADS_PER_KV) * HEADS + row % HEADS_PER_KV) * D + own_pack * 8;
    cp_async(queries_at + swizzled_pack<ROWS>(own_row, own_pack) + i * LINE_BYTES, queries + at, 16);
  }
  // The blocks of the keys and of the values that are copied next.
  int key_blocks[KEYS / 32] = {}, value_blocks[KEYS / 32];
  auto find_blocks = [&](int tile) {
    #pragma unroll
    for (int b = 0; b < KEYS / 32; b++) {
      value_blocks[b] = key_blocks[b];
      key_blocks[b] = table[min(tile * (KEYS / 32) + b, newest / 32)];
    }
  };
  // Slots that no token of the tile may see become zero: an empty one may hold anything, NaN too.
  auto fetch = [&](unsigned to, const T* pool, const int (&blocks)[KEYS / 32], int tile) {
    const T* own = pool + (long(kv) * 32 + own_row) * D + own_pack * 8;
    #pragma unroll
    for (int i = 0; i < KEYS; i += APART) {
      const int bytes = unsigned(tile * KEYS + i + own_row - oldest) <= unsigned(newest - oldest) ? 16 : 0;
      cp_async(
          to + swizzled_pack<KEYS>(own_row, own_pack) + i * LINE_BYTES,
          own + (long(blocks[i / 32]) * KV_HEADS * 32 + i % 32) * D, bytes);
    }
  };
  // What was copied becomes visible to wgmma, and to that of the other threads.
  auto await_copies = [&] {
    cp_async_wait();
    fence_proxy_async();
    BARRIER;
  };
  float score[KEYS / 2], sum[D / 2] = {}, top[2] = {-1e30f, -1e30f}, total[2] = {}, keep[2];
  unsigned weights[KEYS / 16][4];
  auto multiply_keys = [&](int tile) {
    const unsigned own_queries = queries_at + warp / 4 * 64 * LINE_BYTES;
    #pragma unroll
    for (int k = 0; k < D / 16; k++)
      wgmma_m64k16(
          score, wgmma_operand(own_queries + k / 4 * ROWS * LINE_BYTES + k % 4 * 32),
          wgmma_operand(keys_at(tile) + k / 4 * KEYS * LINE_BYTES + k % 4 * 32), k > 0, queries);
    wgmma_commit();
  };
  auto multiply_values = [&](int tile) {
    #pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
      wgmma_m64k16_transposed(
          sum, weights[k], wgmma_operand(values_at(tile) + k * 16 * LINE_BYTES, KEYS * LINE_BYTES), queries);
    wgmma_commit();
  };
  const float log2e = 1.44269504f, scale = CAPPED ? log2e : layer[LAYER_SCALE] * log2e;
  const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
  const int lowest = position + warp * 16 / HEADS_PER_KV;
  const int highest = min(newest, position + (warp * 16 + 15) / HEADS_PER_KV);
  // Scores become weights, relative to the highest so far; `keep` is what becomes of the sums before.
  auto weigh = [&](int tile) {
    const int base = tile * KEYS;
    const bool is_whole = base + KEYS - 1 <= lowest && base >= oldest_seen<WINDOW, CHUNKED>(highest);
    if (CAPPED)
      #pragma unroll
      for (int i = 0; i < KEYS / 2; i++)
        score[i] = layer[LAYER_SOFTCAP] * TANH(score[i] * (layer[LAYER_SCALE] / layer[LAYER_SOFTCAP]));
    if (!is_whole)
      #pragma unroll
      for (int r = 0; r < 2; r++) {
        const int seen = position + (row + r * 8) / HEADS_PER_KV;
        const int last = seen - base - column, first = oldest_seen<WINDOW, CHUNKED>(seen) - base - column;
        #pragma unroll
        for (int j = 0; j < KEYS / 4; j++) {
          const int key = j / 2 * 8 + j % 2;
          if (key > last || (WINDOW > 0 && key < first)) score[j / 2 * 4 + r * 2 + j % 2] = -3e38f;
        }
      }
    #pragma unroll
    for (int r = 0; r < 2; r++) {
      float most = top[r];
      #pragma unroll
      for (int j = 0; j < KEYS / 4; j++) most = fmaxf(most, score[j / 2 * 4 + r * 2 + j % 2]);
      most = fmaxf(most, SHUFFLE_XOR(most, 1));
      most = fmaxf(most, SHUFFLE_XOR(most, 2));
      keep[r] = ex2_approx((top[r] - most) * scale);
      top[r] = most;
      float all = total[r] * keep[r];
      #pragma unroll
      for (int j = 0; j < KEYS / 4; j++) {
        float& x = score[j / 2 * 4 + r * 2 + j % 2];
        x = ex2_approx(fmaf(x, scale, -most * scale));
        all += x;
      }
      total[r] = all;
    }
  };
  auto pack_weights = [&] {
    #pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
      weights[i / 4][i % 4] = pack_pair(score[i * 2], score[i * 2 + 1], queries);
  };
  const int begin = oldest / KEYS, end = newest / KEYS;
  find_blocks(begin);
  fetch(keys_at(begin), keys, key_blocks, begin);
  cp_async_commit();
  find_blocks(begin + 1);
  await_copies();
  wgmma_fence();
  multiply_keys(begin);
  // For the next round: the keys behind `tile`, and its values.
  auto fetch_behind = [&](int tile) {
    if (tile < end) fetch(keys_at(tile + 1), keys, key_blocks, tile + 1);
    fetch(values_at(tile), values, value_blocks, tile);
    cp_async_commit();
    find_blocks(tile + 2);
  };
  fetch_behind(begin);
  wgmma_wait<0>(score);
  weigh(begin);
  pack_weights();
  for (int tile = begin + 1; tile <= end; tile++) {
    await_copies();
    wgmma_fence();
    multiply_keys(tile);
    multiply_values(tile - 1);
    // Into the stages of what all had waited for at the barrier.
    fetch_behind(tile);
    wgmma_wait<1>(score);
    weigh(tile);
    wgmma_wait<0>(sum);
    #pragma unroll
    for (int i = 0; i < D / 2; i++) sum[i] *= keep[i / 2 % 2];
    pack_weights();
  }
  await_copies();
  wgmma_fence();
  multiply_values(end);
  wgmma_wait<0>(sum);
  #pragma unroll
  for (int r = 0; r < 2; r++) {
    const int own = row + r * 8;
    float all = total[r], factor = 1;
    all += SHUFFLE_XOR(all, 1);
    all += SHUFFLE_XOR(all, 2);
    if (own >= count * HEADS_PER_KV) continue;
    if (SINKS) {
      const float most = top[r] * scale;
      const int head = kv * HEADS_PER_KV + own % HEADS_PER_KV;
      const float sink = layer_sinks<D, ROTARY_DIMS>(layer)[head] * log2e;
      factor = ex2_approx(most - fmaxf(most, sink));
      all = all * factor + ex2_approx(sink - fmaxf(most, sink));
    }
    factor /= all;
    T* to = attended + from + (long(own / HEADS_PER_KV) * HEADS + own % HEADS_PER_KV) * D + column;
    #pragma unroll
    for (int j = 0; j < D / 8; j++) {
      const float* x = sum + j * 4 + r * 2;
      *reinterpret_cast<unsigned*>(to + j * 8) = pack_pair(x[0] * factor, x[1] * factor, queries);
    }
  }
