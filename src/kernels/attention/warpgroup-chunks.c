// Attention of prompt chunks with Hopper's wgmma (FlashAttention 3 style, paged); compute capability 9.0 only. A row
// is one query head of one token, among the heads of one KV head. A tile is up to 128 consecutive rows of one
// sequence and may begin and end within a token. Two consumer warpgroups have 64 rows each, with their online softmax
// and accumulators in registers. The grid is persistent: GROUPS CTAs, one per SM, share all tiles and KV heads,
// sorted by context length, longest first, and assigned in serpentine order, which balances the load. With GROUPS 0
// each tile and KV head has its own CTA.
//
// Queries, keys and values are in shared memory in wgmma's layout (wgmma-operand.h). A step multiplies a tile's
// queries by KEYS keys. While the softmax of a step is computed, the previous step's weights are multiplied by its
// values. Steps continue across tiles without a pipeline bubble: a tile's accumulators are complete during the first
// step of the next tile. The two warpgroups drift apart by themselves, so that one uses the tensor cores while the
// other computes its softmax.
//
// A third (producer) warpgroup loads: one warp issues TMA copies of keys, one of values, and one zeroes values that
// no token of the tile attends to, because empty slots may contain NaN. Full and empty mbarriers per stage
// synchronize producers and consumers.
//
// Inputs: queries (tokens, HEADS, D), prepared by prepare.c; layer (layer.h); keys and values (blocks, KV_HEADS, 32,
// D); tables (block tables, packTables); places (positions, KV slots, packPlaces); tiles (first row, count, packTiles).
// Outputs: attended (tokens, HEADS, D); maps: scratch for each CTA's TMA descriptors of keys and values.
// Template arguments: T of 16 bits, D a multiple of 64, HEADS, KV_HEADS, ROTARY_DIMS, WINDOW, CHUNKED, CAPPED
// (softcap), SINKS of the layer; KEYS per step; STAGES of the ring buffer; GROUPS, the persistent grid's CTAs, or 0.
// Grid: GROUPS, or KV_HEADS * tiles, CTAs of 384 threads, with dynamic shared memory for 128 + 2 * STAGES * KEYS
// rows, 5 * STAGES + 2 mbarriers, and 1,024 bytes for alignment.
#include "bulk.h"
#include "cuda-instructions.h"
#include "layer.h"
#include "tensor-copy.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int HEADS_PER_KV = HEADS / KV_HEADS, ROWS = 128, PACKS = D / 8, WARPS = 8;
  constexpr int MATRIX = KEYS * D * 2, MAP_BYTES = 128;
  const int items = tiles_shape[0] / 2 * KV_HEADS;
  // A work item is a tile and a KV head; a CTA gets one item per `lap`. Items past the last one have no rows.
  // `position`: the position of the item's first token.
  struct Item {
    int first, count, kv, position;
  };
  // token_of: the token of the item's first row. offset_of: the row's index among that token's query heads.
  auto token_of = [](const Item& item) { return item.first / HEADS_PER_KV; };
  auto offset_of = [](const Item& item) { return item.first % HEADS_PER_KV; };
  auto item_of = [&](int lap) {
    const int index = lap * GROUPS + (GROUPS == 0 || lap % 2 == 0 ? cta_x : GROUPS - 1 - cta_x);
    Item item = {};
    if (lap < 0 || index >= items || (GROUPS == 0 && lap > 0)) return item;
    item.first = tiles[index / KV_HEADS * 2];
    item.count = tiles[index / KV_HEADS * 2 + 1];
    item.kv = index % KV_HEADS;
    item.position = places[3 * token_of(item)];
    return item;
  };
  // Odd CTAs start with their shortest item, so that the CTAs do not all load their long contexts at the same time.
  const int forward = GROUPS > 0 && cta_x % 2 == 1 ? -1 : 1;
  int lap = forward < 0 ? items / max(GROUPS, 1) : 0;
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
  auto values_arrived = [&](int stage) { return barriers + (2 * STAGES + stage) * 8; };
  auto values_full = [&](int stage) { return barriers + (3 * STAGES + stage) * 8; };
  auto values_empty = [&](int stage) { return barriers + (4 * STAGES + stage) * 8; };
  auto sync_barrier_of = [&](int warpgroup) { return barriers + (5 * STAGES + warpgroup) * 8; };
  if (thread_index == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(keys_full(stage), 1);
      barrier_init(keys_empty(stage), WARPS);
      barrier_init(values_arrived(stage), 1);
      barrier_init(values_full(stage), 1);
      barrier_init(values_empty(stage), WARPS);
    }
    for (int warpgroup = 0; warpgroup < 2; warpgroup++) barrier_init(sync_barrier_of(warpgroup), WARPS / 2);
  }
  AWAIT_INPUTS;
  BARRIER;
  if (warp >= WARPS) {
    setmaxnreg_dec<40>();
    // Calls `visit` for each step of this CTA, with the step's ring stage and how often the stage was filled before.
    auto walk = [&](auto visit) {
      Item item = first_item;
      int n = 0;
      for (int at = lap; item.count > 0; at += forward) {
        const Item next_item = item_of(at + forward);
        const int last = newest_of(item) / KEYS;
        for (int step = begin_of(item); step <= last; step++, n++) visit(item, step, n % STAGES, n / STAGES);
        item = next_item;
      }
    };
    if (warp < WARPS + 2) {
      const bool copies_values = warp > WARPS;
      const unsigned first_stage = copies_values ? values_at(0) : keys_at(0);
      char* const map = reinterpret_cast<char*>(maps) + (cta_x * 2 + copies_values) * MAP_BYTES;
      make_tensor_map(map, first_stage, copies_values ? values : keys, keys_shape[0] * KV_HEADS * 32, D, 32, lane);
      // make_tensor_map used the stage as scratch: fence before TMA (async proxy) writes to it.
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
          const unsigned counted = copies_values ? values_arrived(stage) : keys_full(stage);
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
        barrier_wait(values_arrived(stage), uses % 2);
        // Zeroes the values of masked tokens: their weight is zero, but zero times NaN is NaN.
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
    setmaxnreg_inc<232>();
    const int warpgroup = warp / 4;
    // Offset of an item's row in the queries and in the output.
    auto place_of = [&](const Item& item, int row) {
      const int at = offset_of(item) + row;
      return (long(token_of(item) + at / HEADS_PER_KV) * HEADS + item.kv * HEADS_PER_KV + at % HEADS_PER_KV) * D;
    };
    // Synchronizes the four warps of this warpgroup.
    int syncs = 0;
    auto sync_warpgroup = [&] {
      WARP_BARRIER;
      if (lane == 0) barrier_arrive(sync_barrier_of(warpgroup));
      barrier_wait(sync_barrier_of(warpgroup), syncs++ % 2);
    };
    // Copies this warpgroup's queries. Rows past the end of the tile repeat its last row.
    auto fetch_queries = [&](const Item& item) {
      const int thread = thread_index % 128, pack = thread % PACKS;
      #pragma unroll 1
      for (int i = 0; i < 64; i += 128 / PACKS) {
        const int at = warpgroup * 64 + i + thread / PACKS, row = min(at, item.count - 1);
        cp_async(queries_at + swizzled_pack<ROWS>(at, pack), queries + place_of(item, row) + pack * 8, 16);
      }
      cp_async_commit();
    };
    // Makes the copied queries visible to the warpgroup's wgmmas.
    auto await_queries = [&] {
      cp_async_wait();
      fence_proxy_async();
      sync_warpgroup();
    };
    float score[KEYS / 2], sum[D / 2], top[2], total[2] = {}, keep[2];
    unsigned weights[KEYS / 16][4] = {};
    auto multiply_keys = [&](int stage) {
      const auto own_queries = wgmma_operand(queries_at + warpgroup * 64 * LINE_BYTES), own_keys = wgmma_operand(keys_at(stage));
      #pragma unroll
      for (int k = 0; k < D / 16; k++)
        wgmma_m64k16(
            score, advance_operand(own_queries, k / 4 * ROWS * LINE_BYTES + k % 4 * 32),
            advance_operand(own_keys, k / 4 * KEYS * LINE_BYTES + k % 4 * 32), k > 0, queries);
      wgmma_commit();
    };
    // Multiplies weights by values. `adds`: adds to the sum of the tile's earlier steps, else starts at zero.
    auto multiply_values = [&](unsigned at, bool adds) {
      const auto own_values = wgmma_operand(at, KEYS * LINE_BYTES);
      #pragma unroll
      for (int k = 0; k < KEYS / 16; k++)
        wgmma_m64k16_transposed(
            sum, weights[k], advance_operand(own_values, k * 16 * LINE_BYTES), adds || k > 0, queries);
      wgmma_commit();
    };
    const float log2e = 1.44269504f, scale = CAPPED ? log2e : layer[LAYER_SCALE] * log2e;
    const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
    Item item = first_item, next_item = item_of(lap + forward);
    // The tile's last step, and the range of steps whose keys all rows of this warp attend to (no mask).
    int offset, last_step, whole_begin, whole_end;
    auto begin_item = [&] {
      offset = offset_of(item);
      const int lowest = item.position + (offset + warp * 16) / HEADS_PER_KV;
      const int highest = min(newest_of(item), item.position + (offset + warp * 16 + 15) / HEADS_PER_KV);
      last_step = newest_of(item) / KEYS;
      whole_end = (lowest + 1) / KEYS;
      whole_begin = (oldest_seen<WINDOW, CHUNKED>(highest) + KEYS - 1) / KEYS;
    };
    // Starts the softmax of two rows. A sink is a score without a value; one of a row's four lanes counts it.
    auto begin_rows = [&] {
      for (int r = 0; r < 2; r++) {
        const int head = item.kv * HEADS_PER_KV + (offset + row + r * 8) % HEADS_PER_KV;
        top[r] = SINKS ? layer_sinks<D, ROTARY_DIMS>(layer)[head] * log2e / scale : -1e30f;
        total[r] = SINKS && lane % 4 == 0 ? 1 : 0;
      }
    };
    // Lazy rescaling: weights are relative to a reference score that may lag behind the maximum by
    // up to 2^LAG, so accumulators are seldom rescaled.
    constexpr float LAG = 8;
    // Masks the scores and updates the reference scores; `keep` is the factor that rescales accumulators.
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
      // Finds the maxima of even and odd columns separately, which shortens the dependency chain.
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
        const bool exceeds_lag = (most[r] - top[r]) * scale > LAG;
        keep[r] = exceeds_lag ? ex2_approx((top[r] - most[r]) * scale) : 1;
        top[r] = exceeds_lag ? most[r] : top[r];
      }
    };
    // Converts scores to softmax weights and adds them to the denominators.
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
    // The first step has no previous values to multiply: keys stand in for them, and the product is discarded.
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
      const bool ends = step == last_step, is_last = ends && next_item.count == 0;
      if (ends && !is_last) {
        sync_warpgroup();
        fetch_queries(next_item);
      }
      const float totals[2] = {total[0], total[1]};
      if (begins) begin_rows();
      find_tops(step);
      // Waits for the products with values, which have usually finished by now.
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
      item = next_item;
      lap += forward;
      next_item = item_of(lap + forward);
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
