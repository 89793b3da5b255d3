// Attends with chunks of prompts by Hopper's wgmma; CUDA with compute capability 9.0 only. Of a sequence's tokens the query heads
// that share a head of keys are a row each, and a tile is some consecutive rows, which may begin and end within a token. Two
// warpgroups compute: each has 64 rows, with their softmax in registers. As many groups as run at once share all tiles, the longest
// first, there and back again; or each tile has groups of its own.
//
// Queries, keys and values are in shared memory as wgmma reads them (wgmma-operand.h). A step is KEYS keys of a tile. While
// its softmax is computed, the weights of the step before are multiplied with their values. The steps of one tile follow those
// of another without a break: a tile's sums are complete in the first step of the next. The tensor cores multiply for one
// warpgroup while the other computes its softmax; that comes about by itself.
//
// A third warpgroup loads: one warp copies keys, one copies values, and one zeroes the values that no token of the tile sees,
// for an empty slot may hold anything, NaN too. Barriers say what has arrived, and what all warps that multiply it are done with.
//
// Inputs: queries (tokens, HEADS, D), prepared by prepare.c, layer (layer.h), keys and values
// (blocks, KV_HEADS, 32, D), tables (packTables), places (packPlaces), tiles (packTiles, of rows), sizes: their number, and that of blocks.
// Outputs: attended (tokens, HEADS, D); maps: for each group where keys and values are, as copies take it.
// Constants: T of 16 bits, D of whole panels, HEADS, KV_HEADS, ROTARY_DIMS, WINDOW, CHUNKED, CAPPED, SINKS of the layer;
// KEYS, STAGES, GROUPS or 0.
// Groups: GROUPS, or KV_HEADS * tiles, of 384 threads with dynamic shared memory for 128 + 2 * STAGES * KEYS rows,
// 5 * STAGES + 2 barriers, and 1,024 bytes to align them.
#include "bulk.h"
#include "cuda-instructions.h"
#include "layer.h"
#include "tensor-copy.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int HEADS_PER_KV = HEADS / KV_HEADS, ROWS = 128, PACKS = D / 8, WARPS = 8;
  constexpr int MATRIX = KEYS * D * 2, MAP_BYTES = 128;
  // A tile and a head of keys: which the group has in each lap. Behind the last is one without rows. `position`: of its first token.
  struct Item {
    int first, count, kv, position;
  };
  // Of the first row, and where it is among its token's.
  auto token_of = [](const Item& item) { return item.first / HEADS_PER_KV; };
  auto offset_of = [](const Item& item) { return item.first % HEADS_PER_KV; };
  auto item_of = [&](int lap) {
    const int index = lap * GROUPS + (GROUPS == 0 || lap % 2 == 0 ? group_x : GROUPS - 1 - group_x);
    Item item = {};
    if (lap < 0 || index >= sizes[0] * KV_HEADS || (GROUPS == 0 && lap > 0)) return item;
    item.first = tiles[index / KV_HEADS * 2];
    item.count = tiles[index / KV_HEADS * 2 + 1];
    item.kv = index % KV_HEADS;
    item.position = places[3 * token_of(item)];
    return item;
  };
  // Every other group begins with its shortest: then all that single tokens see is not read at the same time.
  const int forward = GROUPS > 0 && group_x % 2 == 1 ? -1 : 1;
  int lap = forward < 0 ? sizes[0] * KV_HEADS / max(GROUPS, 1) : 0;
  while (lap > 0 && item_of(lap).count == 0) lap--;
  auto newest_of = [&](const Item& item) {
    return item.position + (offset_of(item) + item.count - 1) / HEADS_PER_KV;
  };
  auto begin_of = [&](const Item& item) { return oldest_seen<WINDOW, CHUNKED>(item.position) / KEYS; };
  const Item first_item = item_of(lap);
  if (first_item.count == 0) return;
  const unsigned queries_at = (dynamic_shared_memory() + 1023) / 1024 * 1024;
  const unsigned stages = queries_at + ROWS * D * 2, barriers = stages + 2 * STAGES * MATRIX;
  auto keys_at = [&](int stage) { return stages + stage * MATRIX; };
  auto values_at = [&](int stage) { return stages + (STAGES + stage) * MATRIX; };
  auto keys_full = [&](int stage) { return barriers + stage * 8; };
  auto keys_empty = [&](int stage) { return barriers + (STAGES + stage) * 8; };
  auto values_come = [&](int stage) { return barriers + (2 * STAGES + stage) * 8; };
  auto values_full = [&](int stage) { return barriers + (3 * STAGES + stage) * 8; };
  auto values_empty = [&](int stage) { return barriers + (4 * STAGES + stage) * 8; };
  auto meeting_of = [&](int warpgroup) { return barriers + (5 * STAGES + warpgroup) * 8; };
  if (thread_index == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(keys_full(stage), 1);
      barrier_init(keys_empty(stage), WARPS);
      barrier_init(values_come(stage), 1);
      barrier_init(values_full(stage), 1);
      barrier_init(values_empty(stage), WARPS);
    }
    for (int warpgroup = 0; warpgroup < 2; warpgroup++) barrier_init(meeting_of(warpgroup), WARPS / 2);
  }
  AWAIT_INPUTS;
  BARRIER;
  if (warp >= WARPS) {
    give_registers<40>();
    // Visits all steps of the group in order, with their stage and how often it was used before.
    auto walk = [&](auto visit) {
      Item item = first_item;
      int n = 0;
      for (int at = lap; item.count > 0; at += forward) {
        const Item behind = item_of(at + forward);
        const int last = newest_of(item) / KEYS;
        for (int step = begin_of(item); step <= last; step++, n++) visit(item, step, n % STAGES, n / STAGES);
        item = behind;
      }
    };
    if (warp < WARPS + 2) {
      const bool copies_values = warp > WARPS;
      const unsigned first_stage = copies_values ? values_at(0) : keys_at(0);
      char* const map = reinterpret_cast<char*>(maps) + (group_x * 2 + copies_values) * MAP_BYTES;
      make_tensor_map(map, first_stage, copies_values ? values : keys, sizes[1] * KV_HEADS * 32, D, 32, lane);
      // The stage was written to, and copies write to it in another way.
      fence_proxy_async();
      WARP_BARRIER;
      if (lane == 0)
        walk([&](const Item& item, int step, int stage, int uses) {
          const int* table = tables + 2 + places[3 * token_of(item) + 2] * (tables[0] + 1);
          const int newest = newest_of(item) / 32;
          int rows[KEYS / 32];
          #pragma unroll
          for (int b = 0; b < KEYS / 32; b++)
            rows[b] = (table[min(step * (KEYS / 32) + b, newest)] * KV_HEADS + item.kv) * 32;
          if (uses > 0) barrier_wait(copies_values ? values_empty(stage) : keys_empty(stage), (uses + 1) % 2);
          const unsigned counted = copies_values ? values_come(stage) : keys_full(stage);
          const unsigned to = first_stage + stage * MATRIX;
          barrier_expect(counted, MATRIX);
          #pragma unroll
          for (int b = 0; b < KEYS / 32; b++)
            #pragma unroll
            for (int panel = 0; panel < D / 64; panel++)
              tensor_copy(to + (panel * KEYS + b * 32) * LINE_BYTES, map, panel * 64, rows[b], counted);
        });
      WARP_BARRIER;
    } else if (warp == WARPS + 2) {
      walk([&](const Item& item, int step, int stage, int uses) {
        barrier_wait(values_come(stage), uses % 2);
        // Scores of tokens that are not seen are masked, but their values are multiplied by zero.
        const int first = WINDOW > 0 ? oldest_seen<WINDOW, CHUNKED>(item.position) - step * KEYS : 0;
        const int last = newest_of(item) - step * KEYS;
        if (first > 0 || last < KEYS - 1) {
          for (int c = lane; c < KEYS * PACKS; c += 32)
            if (c / PACKS < first || c / PACKS > last)
              store_shared(values_at(stage) + swizzled_pack<KEYS>(c / PACKS, c % PACKS), uint4{});
          fence_proxy_async();
        }
        WARP_BARRIER;
        if (lane == 0) barrier_arrive(values_full(stage));
      });
    }
  } else {
    take_registers<232>();
    const int warpgroup = warp / 4;
    // Where the heads of a row of the tile are, of queries and of what they attend to.
    auto place_of = [&](const Item& item, int row) {
      const int at = offset_of(item) + row;
      return (long(token_of(item) + at / HEADS_PER_KV) * HEADS + item.kv * HEADS_PER_KV + at % HEADS_PER_KV) * D;
    };
    // A barrier of the warpgroup's warps.
    int meetings = 0;
    auto meet = [&] {
      WARP_BARRIER;
      if (lane == 0) barrier_arrive(meeting_of(warpgroup));
      barrier_wait(meeting_of(warpgroup), meetings++ % 2);
    };
    // Each warpgroup copies its own queries. Rows that the tile does not fill repeat the last one's.
    auto fetch_queries = [&](const Item& item) {
      const int thread = thread_index % 128, pack = thread % PACKS;
      #pragma unroll 1
      for (int i = 0; i < 64; i += 128 / PACKS) {
        const int at = warpgroup * 64 + i + thread / PACKS, row = min(at, item.count - 1);
        cp_async(queries_at + swizzled_pack<ROWS>(at, pack), queries + place_of(item, row) + pack * 8, 16);
      }
      cp_async_commit();
    };
    // They become visible to the warpgroup's wgmma.
    auto await_queries = [&] {
      cp_async_wait();
      fence_proxy_async();
      meet();
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
    auto multiply_values = [&](unsigned at, bool adds) {
      const auto own_values = wgmma_operand(at, KEYS * LINE_BYTES);
      #pragma unroll
      for (int k = 0; k < KEYS / 16; k++)
        wgmma_m64k16_transposed(
            sum, weights[k], operand_behind(own_values, k * 16 * LINE_BYTES), adds || k > 0, queries);
      wgmma_commit();
    };
    const float log2e = 1.44269504f, scale = CAPPED ? log2e : layer[LAYER_SCALE] * log2e;
    const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
    Item item = first_item, behind = item_of(lap + forward);
    // Of the tile: its last step, and those in which this warp's rows see all keys.
    int offset, last_step, whole_begin, whole_end;
    auto begin_item = [&] {
      offset = offset_of(item);
      const int lowest = item.position + (offset + warp * 16) / HEADS_PER_KV;
      const int highest = min(newest_of(item), item.position + (offset + warp * 16 + 15) / HEADS_PER_KV);
      last_step = newest_of(item) / KEYS;
      whole_end = (lowest + 1) / KEYS;
      whole_begin = (oldest_seen<WINDOW, CHUNKED>(highest) + KEYS - 1) / KEYS;
    };
    // A sink is a score without a value, of one of the lanes that share a row.
    auto begin_rows = [&] {
      for (int r = 0; r < 2; r++) {
        const int head = item.kv * HEADS_PER_KV + (offset + row + r * 8) % HEADS_PER_KV;
        top[r] = SINKS ? layer_sinks<D, ROTARY_DIMS>(layer)[head] * log2e / scale : -1e30f;
        total[r] = SINKS && lane % 4 == 0 ? 1 : 0;
      }
    };
    // Weights are relative to a score that the highest so far exceeds by a factor of 2^LAG at most: sums are seldom rescaled.
    constexpr float LAG = 8;
    // `keep` is what becomes of the sums before.
    auto find_tops = [&](int step) {
      const int base = step * KEYS;
      if (CAPPED)
        #pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
          score[i] = layer[LAYER_SOFTCAP] * TANH(score[i] * (layer[LAYER_SCALE] / layer[LAYER_SOFTCAP]));
      if (step >= whole_end || (WINDOW > 0 && step < whole_begin))
        #pragma unroll
        for (int r = 0; r < 2; r++) {
          const int seen = item.position + (offset + row + r * 8) / HEADS_PER_KV;
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
      for (int r = 0; r < 2; r++) most[r] = fmaxf(most[r * 2], most[r * 2 + 1]);
      #pragma unroll
      for (int r = 0; r < 2; r++) most[r] = fmaxf(most[r], SHUFFLE_XOR(most[r], 1));
      #pragma unroll
      for (int r = 0; r < 2; r++) most[r] = fmaxf(most[r], SHUFFLE_XOR(most[r], 2));
      #pragma unroll
      for (int r = 0; r < 2; r++) {
        const bool is_behind = (most[r] - top[r]) * scale > LAG;
        keep[r] = is_behind ? ex2_approx((top[r] - most[r]) * scale) : 1;
        top[r] = is_behind ? most[r] : top[r];
      }
    };
    // Scores become weights.
    auto weigh = [&] {
      float all[2] = {total[0] * keep[0], total[1] * keep[1]};
      #pragma unroll
      for (int i = 0; i < KEYS / 2; i++) {
        const int r = i / 2 % 2;
        score[i] = ex2_approx(fmaf(score[i], scale, -top[r] * scale));
        all[r] += score[i];
        if (i % 2 == 1) weights[i / 8][i / 2 % 4] = pack_pair(score[i - 1], score[i], queries);
      }
      for (int r = 0; r < 2; r++) total[r] = all[r];
    };
    auto store = [&](const Item& done, const float (&totals)[2]) {
      #pragma unroll
      for (int r = 0; r < 2; r++) {
        const int at = row + r * 8;
        float all = totals[r];
        all += SHUFFLE_XOR(all, 1);
        all += SHUFFLE_XOR(all, 2);
        if (at >= done.count) continue;
        const float factor = 1 / all;
        T* to = attended + place_of(done, at) + column;
        #pragma unroll
        for (int j = 0; j < D / 8; j++) {
          const float* x = sum + j * 4 + r * 2;
          *reinterpret_cast<unsigned*>(to + j * 8) = pack_pair(x[0] * factor, x[1] * factor, queries);
        }
      }
    };
    begin_item();
    fetch_queries(item);
    await_queries();
    int stage = 0, uses = 0, step = begin_of(item), n = 0;
    // Before the first step its keys stand in the place of values: their sums are nobody's.
    unsigned own_values = keys_at(0);
    int value_stage = 0, value_uses = 0;
    Item done = {};
    bool begins = true, began = true;
    for (;;) {
      barrier_wait(keys_full(stage), uses % 2);
      if (n > 0) barrier_wait(values_full(value_stage), value_uses % 2);
      wgmma_fence();
      multiply_keys(stage);
      multiply_values(own_values, !began);
      wgmma_wait<1>(score);
      if (lane == 0 && n > 0) barrier_arrive(keys_empty(stage));
      const bool ends = step == last_step, is_last = ends && behind.count == 0;
      if (ends && !is_last) {
        meet();
        fetch_queries(behind);
      }
      const float totals[2] = {total[0], total[1]};
      if (begins) begin_rows();
      find_tops(step);
      // These products have come to their end meanwhile.
      wgmma_wait<0>(sum);
      if (lane == 0) barrier_arrive(n > 0 ? values_empty(value_stage) : keys_empty(0));
      if (begins) {
        if (n > 0) store(done, totals);
      } else if (keep[0] < 1 || keep[1] < 1) {
        #pragma unroll
        for (int i = 0; i < D / 2; i++) sum[i] *= keep[i / 2 % 2];
      }
      weigh();
      own_values = values_at(stage);
      value_stage = stage;
      value_uses = uses;
      if (++stage == STAGES) {
        stage = 0;
        uses++;
      }
      n++;
      step++;
      began = begins;
      begins = ends;
      if (!ends) continue;
      done = item;
      if (is_last) break;
      item = behind;
      lap += forward;
      behind = item_of(lap + forward);
      step = begin_of(item);
      begin_item();
      await_queries();
    }
    barrier_wait(values_full(value_stage), value_uses % 2);
    wgmma_fence();
    multiply_values(own_values, !began);
    wgmma_wait<0>(sum);
    store(done, total);
  }
