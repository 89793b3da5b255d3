// Attends with chunks of prompts by Hopper's wgmma; CUDA with compute capability 9.0 only. A tile is as chunks.c has it:
// a few consecutive tokens of one sequence with all their query heads that share a head of keys, a row each. Of the two
// warpgroups each has 64 rows, with their softmax in registers. As many groups as run at once share all tiles, the longest
// first, there and back again; or each tile has groups of its own.
//
// Queries, keys and values are in shared memory as wgmma reads them (wgmma-operand.h). A step is KEYS keys of a tile. While
// its softmax is computed, the weights of the step before are multiplied with their values, and the keys and values behind
// are being copied. The steps of one tile follow those of another without a break: a tile's sums are there in the first
// step of the next.
//
// With three stages of keys and values the warpgroups take turns: one's products run while the other computes its softmax.
// The second one is half a step behind, and copies a step further ahead. With two stages they go together.
//
// Inputs: queries (tokens, HEADS, D), prepared by prepare.c, layer (layer.h), keys and values
// (blocks, KV_HEADS, 32, D), tables (packTables), places (packPlaces), tiles (packTiles), sizes: their number at 0.
// Output: attended (tokens, HEADS, D).
// Constants: T of 16 bits, D of whole panels, HEADS, KV_HEADS, ROTARY_DIMS, WINDOW, CHUNKED, CAPPED, SINKS of the layer;
// KEYS, STAGES, GROUPS or 0.
// Groups: GROUPS, or KV_HEADS * tiles, of 256 threads with dynamic shared memory for 128 + 2 * STAGES * KEYS rows, and
// 1,024 bytes to align them.
#include "cuda-instructions.h"
#include "layer.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int HEADS_PER_KV = HEADS / KV_HEADS, THREADS = 256, ROWS = 128, PACKS = D / 8;
  constexpr bool BY_TURNS = STAGES == 3;
  const int warpgroup = warp / 4;
  // A tile and a head of keys: which the group has in each lap. Behind the last is one without tokens. To read them again is
  // better than to keep them: there is no register left.
  struct Item {
    int first, count, kv, position;
  };
  auto item_of = [&](int lap) {
    const int index = lap * GROUPS + (GROUPS == 0 || lap % 2 == 0 ? group_x : GROUPS - 1 - group_x);
    Item item = {};
    if (lap < 0 || index >= sizes[0] * KV_HEADS || (GROUPS == 0 && lap > 0)) return item;
    item.first = tiles[index / KV_HEADS * 2];
    item.count = tiles[index / KV_HEADS * 2 + 1];
    item.kv = index % KV_HEADS;
    item.position = places[3 * item.first];
    return item;
  };
  // Every other group begins with its shortest: then all that single tokens see is not read at the same time.
  const int forward = GROUPS > 0 && group_x % 2 == 1 ? -1 : 1;
  int lap = forward < 0 ? sizes[0] * KV_HEADS / max(GROUPS, 1) : 0;
  while (lap > 0 && item_of(lap).count == 0) lap--;
  auto begin_of = [&](const Item& item) { return oldest_seen<WINDOW, CHUNKED>(item.position) / KEYS; };
  auto table_of = [&](const Item& item) { return 2 + places[3 * item.first + 2] * (tables[0] + 1); };
  auto newest_of = [&](const Item& item) { return item.position + item.count - 1; };
  Item own = item_of(lap);
  if (own.count == 0) return;
  const unsigned queries_at = (dynamic_shared_memory() + 1023) / 1024 * 1024;
  const unsigned stages = queries_at + ROWS * D * 2;
  auto keys_at = [&](int stage) { return stages + stage * KEYS * D * 2; };
  auto values_at = [&](int stage) { return stages + (STAGES + stage) * KEYS * D * 2; };
  auto stage_behind = [&](int stage) { return stage == STAGES - 1 ? 0 : stage + 1; };
  auto start_of = [&](const Item& item) {
    return (long(item.first) * KV_HEADS + item.kv) * HEADS_PER_KV * D;
  };
  // Each warpgroup copies its own queries. Rows that the tile does not fill repeat the last one's.
  auto fetch_queries = [&](const Item& item) {
    const int thread = thread_index % 128, pack = thread % PACKS;
    const T* from = queries + start_of(item) + pack * 8;
    #pragma unroll 1
    for (int i = 0; i < 64; i += 128 / PACKS) {
      const int at = warpgroup * 64 + i + thread / PACKS, row = min(at, item.count * HEADS_PER_KV - 1);
      cp_async(
          queries_at + swizzled_pack<ROWS>(at, pack),
          from + (long(row / HEADS_PER_KV) * HEADS + row % HEADS_PER_KV) * D, 16);
    }
  };
  // What is copied next: the keys of step `ahead_step` of `ahead`, and the values of the step before it, from blocks that
  // are known.
  Item ahead = own;
  int ahead_lap = lap, ahead_step = begin_of(ahead), key_stage = 0;
  int ahead_table = table_of(ahead), value_blocks[KEYS / 32], values_from = 0, values_to = 0;
  bool has_values = false;
  // A thread copies the same pack of rows that are APART; where it is checked, those outside of first..last
  // become zero.
  constexpr int APART = THREADS / PACKS;
  const int own_row = thread_index / PACKS, own_pack = thread_index % PACKS;
  auto fetch = [&](unsigned to, const T* pool, const int (&blocks)[KEYS / 32], bool is_checked, int first, int last) {
    const T* from = pool + own_row * D + own_pack * 8;
    #pragma unroll
    for (int i = 0; i < KEYS; i += APART)
      cp_async(
          to + swizzled_pack<KEYS>(own_row, own_pack) + i * LINE_BYTES,
          from + (long(blocks[i / 32]) * 32 + i % 32) * D,
          !is_checked || unsigned(i + own_row - first) <= unsigned(last - first) ? 16 : 0);
  };
  auto fetch_behind = [&] {
    const bool has_keys = ahead.count > 0;
    const int newest = newest_of(ahead);
    int key_blocks[KEYS / 32] = {};
    if (has_keys)
      #pragma unroll
      for (int b = 0; b < KEYS / 32; b++)
        key_blocks[b] = tables[ahead_table + min(ahead_step * (KEYS / 32) + b, newest / 32)] * KV_HEADS + ahead.kv;
    const int stage = key_stage == 0 ? STAGES - 1 : key_stage - 1;
    if (has_values) fetch(values_at(stage), values, value_blocks, true, values_from, values_to);
    // Scores of tokens that are not seen are not looked at, but their values are multiplied with zero: an empty slot may
    // hold anything, NaN too.
    if (has_keys) fetch(keys_at(key_stage), keys, key_blocks, false, 0, 0);
    cp_async_commit();
    has_values = has_keys;
    if (!has_keys) return;
    #pragma unroll
    for (int b = 0; b < KEYS / 32; b++) value_blocks[b] = key_blocks[b];
    values_from = WINDOW > 0 ? oldest_seen<WINDOW, CHUNKED>(ahead.position) - ahead_step * KEYS : 0;
    values_to = newest - ahead_step * KEYS;
    key_stage = stage_behind(key_stage);
    ahead_step += 1;
    if (ahead_step <= newest / KEYS) return;
    ahead_lap += forward;
    ahead = item_of(ahead_lap);
    ahead_step = begin_of(ahead);
    ahead_table = table_of(ahead);
  };
  // What was copied becomes visible to wgmma, and to that of the other threads.
  auto await_copies = [&] {
    cp_async_wait();
    fence_proxy_async();
    BARRIER;
  };
  float score[KEYS / 2], sum[D / 2], top[2], total[2] = {}, keep[2];
  unsigned weights[KEYS / 16][4] = {};
  auto multiply_keys = [&](int stage) {
    const auto own_queries = wgmma_operand(queries_at + warpgroup * 64 * LINE_BYTES), own_keys = wgmma_operand(keys_at(stage));
    #pragma unroll
    for (int k = 0; k < D / 16; k++)
      wgmma_m64k16(
          score, operand_behind(own_queries, k / 4 * ROWS * LINE_BYTES + k % 4 * 32),
          operand_behind(own_keys, k / 4 * KEYS * LINE_BYTES + k % 4 * 32), k > 0, queries);
    wgmma_commit();
  };
  // Added to what the tile's steps before have made, if there were some.
  auto multiply_values = [&](int stage, bool adds) {
    const auto own_values = wgmma_operand(values_at(stage), KEYS * LINE_BYTES);
    #pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
      wgmma_m64k16_transposed(
          sum, weights[k], operand_behind(own_values, k * 16 * LINE_BYTES), adds || k > 0, queries);
    wgmma_commit();
  };
  const float log2e = 1.44269504f, scale = CAPPED ? log2e : layer[LAYER_SCALE] * log2e;
  const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
  // A sink is a score without a value, of one of the lanes that share a row.
  auto begin_rows = [&] {
    for (int r = 0; r < 2; r++) {
      const int head = own.kv * HEADS_PER_KV + (row + r * 8) % HEADS_PER_KV;
      top[r] = SINKS ? layer_sinks<D, ROTARY_DIMS>(layer)[head] * log2e / scale : -1e30f;
      total[r] = SINKS && lane % 4 == 0 ? 1 : 0;
    }
  };
  // The highest scores so far; `keep` is what becomes of the sums before.
  auto find_tops = [&](int step) {
    const int base = step * KEYS, lowest = own.position + warp * 16 / HEADS_PER_KV;
    const int highest = min(newest_of(own), own.position + (warp * 16 + 15) / HEADS_PER_KV);
    const bool is_whole = base + KEYS - 1 <= lowest && base >= oldest_seen<WINDOW, CHUNKED>(highest);
    if (CAPPED)
      #pragma unroll
      for (int i = 0; i < KEYS / 2; i++)
        score[i] = layer[LAYER_SOFTCAP] * TANH(score[i] * (layer[LAYER_SCALE] / layer[LAYER_SOFTCAP]));
    if (!is_whole)
      #pragma unroll
      for (int r = 0; r < 2; r++) {
        const int seen = own.position + (row + r * 8) / HEADS_PER_KV;
        const int last = seen - base - column, first = oldest_seen<WINDOW, CHUNKED>(seen) - base - column;
        #pragma unroll
        for (int j = 0; j < KEYS / 4; j++) {
          const int key = j / 2 * 8 + j % 2;
          if (key > last || (WINDOW > 0 && key < first)) score[j / 2 * 4 + r * 2 + j % 2] = -3e38f;
        }
      }
    // Those of even and of odd columns do not wait for each other.
    float most[4] = {score[0], score[1], score[2], score[3]};
    #pragma unroll
    for (int i = 4; i < KEYS / 2; i++) most[i % 4] = fmaxf(most[i % 4], score[i]);
    #pragma unroll
    for (int r = 0; r < 2; r++) most[r] = fmaxf(top[r], fmaxf(most[r * 2], most[r * 2 + 1]));
    #pragma unroll
    for (int r = 0; r < 2; r++) most[r] = fmaxf(most[r], SHUFFLE_XOR(most[r], 1));
    #pragma unroll
    for (int r = 0; r < 2; r++) most[r] = fmaxf(most[r], SHUFFLE_XOR(most[r], 2));
    #pragma unroll
    for (int r = 0; r < 2; r++) {
      keep[r] = ex2_approx((top[r] - most[r]) * scale);
      top[r] = most[r];
    }
  };
  // Scores become weights, relative to the highest.
  auto weigh = [&] {
    float all[2] = {total[0] * keep[0], total[1] * keep[1]};
    #pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
      const int r = i / 2 % 2;
      score[i] = ex2_approx(fmaf(score[i], scale, -top[r] * scale));
      all[r] += score[i];
    }
    for (int r = 0; r < 2; r++) total[r] = all[r];
  };
  auto pack_weights = [&] {
    #pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
      weights[i / 4][i % 4] = pack_pair(score[i * 2], score[i * 2 + 1], queries);
  };
  auto store = [&](const Item& item, const float (&totals)[2]) {
    #pragma unroll
    for (int r = 0; r < 2; r++) {
      const int at = row + r * 8;
      float all = totals[r];
      all += SHUFFLE_XOR(all, 1);
      all += SHUFFLE_XOR(all, 2);
      if (at >= item.count * HEADS_PER_KV) continue;
      const float factor = 1 / all;
      T* to = attended + start_of(item) + (long(at / HEADS_PER_KV) * HEADS + at % HEADS_PER_KV) * D + column;
      #pragma unroll
      for (int j = 0; j < D / 8; j++) {
        const float* x = sum + j * 4 + r * 2;
        *reinterpret_cast<unsigned*>(to + j * 8) = pack_pair(x[0] * factor, x[1] * factor, queries);
      }
    }
  };
  AWAIT_INPUTS;
  fetch_queries(own);
  fetch_behind();
  await_copies();
  if (BY_TURNS && warpgroup == 1) {
    fetch_behind();
    await_copies();
  }
  // Before the first step stand keys in the place of values: their sums are nobody's.
  int stage = 0, stage_before = -STAGES, step = begin_of(own);
  bool begins = true, began = true;
  for (;;) {
    wgmma_fence();
    multiply_keys(stage);
    multiply_values(stage_before, !began);
    // Into the stages of what all had waited for at the barrier.
    fetch_behind();
    wgmma_wait<1>(score);
    const bool ends = step == newest_of(own) / KEYS;
    // It is the other's turn; and nobody reads the queries any more.
    if (BY_TURNS || (GROUPS > 0 && ends)) BARRIER;
    if (GROUPS > 0 && ends) {
      const Item behind = item_of(lap + forward);
      if (behind.count > 0) fetch_queries(behind);
    }
    const float totals[2] = {total[0], total[1]};
    if (begins) begin_rows();
    find_tops(step);
    auto finish_sums = [&] {
      wgmma_wait<0>(sum);
      if (GROUPS > 0 && begins && stage_before >= 0) store(item_of(lap - forward), totals);
      #pragma unroll
      for (int i = 0; i < D / 2; i++) sum[i] *= keep[i / 2 % 2];
    };
    // By turns these products have come to their end meanwhile.
    if (BY_TURNS) finish_sums();
    weigh();
    if (!BY_TURNS) finish_sums();
    pack_weights();
    cp_async_commit();
    await_copies();
    began = begins;
    begins = ends;
    stage_before = stage;
    stage = stage_behind(stage);
    step += 1;
    if (!ends) continue;
    const Item behind = item_of(lap + forward);
    if (behind.count == 0) break;
    own = behind;
    lap += forward;
    step = begin_of(own);
  }
  wgmma_fence();
  multiply_values(stage_before, !began);
  if (BY_TURNS && warpgroup == 0) BARRIER;
  wgmma_wait<0>(sum);
  store(own, total);
