// Multiplies a prompt's rows by a dense matrix with Hopper's wgmma, fused with its epilogue; compute capability 9.0
// only. The matrix has gate and up projections (epilogue: SwiGLU), or, if PREPARES is defined, the query, key and
// value projections (epilogue: RoPE, and keys and values written to their KV slots as prepare.c does). Products of
// this size are limited by the GPU's power budget, so the design minimizes data movement and keeps the tensor cores
// busy. A cluster of two CTAs has tiles with the same columns: each loads half of the matrix operand and multicasts
// it to both.
//
// A tile is 128 rows by 128 gate and 128 up columns, or by two heads. The grid is persistent. Two consumer warpgroups
// have 64 rows each, with all accumulators in registers. One warp of a third (producer) warpgroup issues TMA copies
// of both operands, STEP elements along K per step, into a ring of STAGES; full and empty mbarriers synchronize
// producer and consumers. The output leaves through shared memory by TMA stores, PANEL columns of a warp's 16 rows at
// a time, while the next tile begins. Clusters process the tiles in bands, so that tiles with the same rows run close
// together and hit the L2 cache. If the last wave would use at most half of the clusters, its gated tiles are split
// in two, 64 gate and 64 up columns each.
//
// Inputs: x (rows, K); weight (N, K) of T, gate first, then up. With PREPARES also layer (layer.h), keys and values
// (blocks, KV_HEADS, 32, D), written in place, and places (packPlaces).
// Outputs: made (rows, N / 2), silu(x gate) * (x up), or the queries (rows, HEADS * D); maps: scratch for each CTA's
// TMA descriptors of x, weight and made.
// Template arguments: T of 16 bits, K, N, GROUPS (CTAs), STAGES; with PREPARES D = 128, HEADS, KV_HEADS, ROTARY_DIMS,
// LONG_BEYOND, SINKS, and LAST_QUERIES, which skips tiles of queries that contain no sequence's last token.
// Grid: GROUPS CTAs of 384 threads, in clusters of two. Dynamic shared memory for the stages, two panels per warp,
// two mbarriers per stage, and alignment.
#include "bulk.h"
#include "cluster.h"
#include "prompt-heads.h"
#include "tensor-copy.h"
#include "warpgroup-sums.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int ROWS = 128, COLUMNS = 256, OWN = COLUMNS / 2;
  constexpr int STEP = LINE_BYTES / 2, STEPS = K / STEP, WARPS = 8, CLUSTER_CTAS = 2, MAPS = 3, MAP_BYTES = 128;
  constexpr int MATRIX = ROWS * LINE_BYTES, STAGE = MATRIX + COLUMNS * LINE_BYTES, HALF_STAGE = MATRIX + OWN * LINE_BYTES;
  constexpr int PANEL = LINE_BYTES / 2, PANEL_BYTES = 16 * LINE_BYTES;
  // COLUMNS_PER_OUT: matrix columns per output column. SECOND: distance from a tile's first gate column to its first
  // up column. NEXT: distance to the next tile's first column.
#ifdef PREPARES
  constexpr int OUT_COLUMNS = HEADS * D, COLUMNS_PER_OUT = 1, SECOND = OWN, NEXT = COLUMNS;
#else
  constexpr int OUT_COLUMNS = N / 2, COLUMNS_PER_OUT = 2, SECOND = OUT_COLUMNS, NEXT = OWN;
#endif
  // One CTA of the cluster loads SHARE gate and SHARE up columns of a tile; of a halved tile, only gate or only up.
  constexpr int SHARE = OWN / CLUSTER_CTAS;
  const int rows = x_shape[0], rank = cta_x % CLUSTER_CTAS;
  const unsigned stages = (dynamic_shared_memory() + 1023) / 1024 * 1024;
  const unsigned panels = stages + STAGES * STAGE, full = panels + WARPS * 2 * PANEL_BYTES, empty = full + STAGES * 8;
  if (thread_index == 0)
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(full + stage * 8, 1);
      barrier_init(empty + stage * 8, CLUSTER_CTAS * WARPS);
    }
  AWAIT_INPUTS;
  char* const x_map = reinterpret_cast<char*>(maps) + cta_x * MAPS * MAP_BYTES;
  char *const weight_map = x_map + MAP_BYTES, *const made_map = weight_map + MAP_BYTES;
  if (warp == WARPS) {
    make_tensor_map(x_map, panels, x, rows, K, ROWS, lane);
    make_tensor_map(weight_map, panels + MAP_BYTES, weight, N, K, SHARE, lane);
    make_tensor_map(made_map, panels + 2 * MAP_BYTES, made, rows, OUT_COLUMNS, 16, lane);
  }
  cluster_barrier();
  // Tile order: all columns of a band of about 2,048 rows come before the next band, so that the band's rows stay in
  // the L2 cache.
  constexpr int BAND = 2048 / (ROWS * CLUSTER_CTAS), COLUMN_TILES = N / COLUMNS, CLUSTERS = GROUPS / CLUSTER_CTAS;
  const int row_tiles = (rows + ROWS * CLUSTER_CTAS - 1) / (ROWS * CLUSTER_CTAS);
  const int all_tiles = row_tiles * COLUMN_TILES, left = all_tiles % CLUSTERS;
  const int halved = COLUMNS_PER_OUT > 1 && left * 2 <= CLUSTERS ? left : 0, whole = all_tiles - halved, own_tiles = whole + halved * 2;
  struct Tile {
    int row, column; // first row of x, first column (matrix row)
    bool is_half;
  };
  const auto tile_at = [&](int number) {
    const int past = max(number - whole, 0), index = min(number, whole) + past / 2;
    const int first = index / (BAND * COLUMN_TILES) * BAND, of = index % (BAND * COLUMN_TILES);
    const int band = min(BAND, row_tiles - first);
    return Tile{((first + of % band) * CLUSTER_CTAS + rank) * ROWS, of / band * NEXT + past % 2 * SHARE, number >= whole};
  };
  const auto is_wanted = [&](const Tile& tile) {
#ifdef PREPARES
    if (!LAST_QUERIES || tile.column >= OUT_COLUMNS) return true;
    const int first = tile.row - rank * ROWS, next_row = first + CLUSTER_CTAS * ROWS;
    return next_row >= rows || places[3 * next_row + 2] != places[3 * first + 2];
#else
    return true;
#endif
  };
  const int first_tile = cta_x / CLUSTER_CTAS;
  if (warp >= WARPS) {
    setmaxnreg_dec<40>();
    if (warp == WARPS && lane == 0) {
      int step = 0;
      for (int index = first_tile; index < own_tiles; index += CLUSTERS) {
        const Tile tile = tile_at(index);
        if (!is_wanted(tile)) continue;
        for (int s = 0; s < STEPS; s++, step++) {
          const int stage = step % STAGES;
          const unsigned to = stages + stage * STAGE, counted = full + stage * 8;
          if (step >= STAGES) barrier_wait(empty + stage * 8, (step / STAGES + 1) % 2);
          barrier_expect(counted, tile.is_half ? HALF_STAGE : STAGE);
          tensor_copy(to, x_map, s * STEP, tile.row, counted);
          const auto copy_columns = [&](int line, int first) {
            tensor_copy_to((1u << CLUSTER_CTAS) - 1, to + MATRIX + line * LINE_BYTES, weight_map, s * STEP, first, counted);
          };
          if (tile.is_half) {
            copy_columns(rank * SHARE, tile.column + rank * SECOND);
          } else {
            copy_columns(rank * SHARE, tile.column + rank * SHARE);
            copy_columns(OWN + rank * SHARE, tile.column + SECOND + rank * SHARE);
          }
        }
      }
    }
    WARP_BARRIER;
  } else {
    setmaxnreg_inc<232>();
    acquire_tensor_map(made_map);
    const auto done_with = [&](int stage) {
      if (lane < CLUSTER_CTAS) barrier_arrive_at(lane, empty + stage * 8);
    };
    int step = 0;
    const auto compute_tile = [&](const Tile& tile, auto& sum) {
      constexpr int SUMS = sizeof(sum) / sizeof(float), PANELS = SUMS * 2 / COLUMNS_PER_OUT / PANEL;
      for (int s = 0; s < STEPS; s++, step++) {
        const int stage = step % STAGES;
        barrier_wait(full + stage * 8, step / STAGES % 2);
        const unsigned at = stages + stage * STAGE;
        const auto own = wgmma_operand(at + warp / 4 * 64 * LINE_BYTES), matrix = wgmma_operand(at + MATRIX);
        wgmma_fence();
        #pragma unroll
        for (int k = 0; k < STEP / 16; k++)
          wgmma_m64k16(sum, advance_operand(own, k * 32), advance_operand(matrix, k * 32), s > 0 || k > 0, x);
        wgmma_commit();
        if (s > 0) {
          wgmma_wait<1>();
          done_with((step + STAGES - 1) % STAGES);
        }
      }
      wgmma_wait<0>(sum);
      done_with((step + STAGES - 1) % STAGES);
#ifdef PREPARES
      const int head = tile.column / D, own_row = tile.row + warp * 16 + lane / 4;
      const int first = min(own_row, rows - 1), second = min(own_row + 8, rows - 1);
      const int positions[2] = {places[3 * first], places[3 * second]};
      const auto rope_of = [&](int token) {
        const bool is_long = is_long_slot<LONG_BEYOND>(places[3 * token + 1]);
        return layer_rope<D, ROTARY_DIMS, LONG_BEYOND, SINKS ? HEADS : 0>(layer, is_long);
      };
      const LayerRope ropes[2] = {rope_of(first), rope_of(second)};
      rotate_heads<D, HEADS, KV_HEADS, ROTARY_DIMS, LONG_BEYOND>(sum, ropes, head, positions, lane, x);
#endif
      #pragma unroll
      for (int panel = 0; panel < PANELS; panel++) {
        const unsigned own_panel = panels + (warp * 2 + panel % 2) * PANEL_BYTES;
#ifdef PREPARES
        const int out_head = head + panel * PANEL / D;
        const bool is_copied = out_head < HEADS;
#else
        constexpr bool is_copied = true;
#endif
        // A warp has two panels: it fills one while the TMA store of the other is in flight.
        if (lane == 0) is_copied ? tensor_stores_wait<1>() : tensor_stores_wait<0>();
        WARP_BARRIER;
        #pragma unroll
        for (int j = 0; j < PANEL / 8; j++)
          #pragma unroll
          for (int r = 0; r < 2; r++) {
            const float* sums = sum + (panel * 8 + j) * 4 + r * 2;
            float pair[2] = {sums[0], sums[1]};
#ifndef PREPARES
            gate_pair(pair, sums + SUMS / 2, x);
#endif
            store_shared(own_panel + swizzled_pack<16>(lane / 4 + r * 8, j) + lane % 4 * 4, pack_pair(pair[0], pair[1], x));
          }
#ifdef PREPARES
        if (!is_copied) {
          // Writes keys or values to their KV slots. MLX assumes that inputs are constant, so launches that read
          // these slots take this launch's output.
          T* pool = const_cast<T*>(out_head >= HEADS + KV_HEADS ? values : keys) + panel * PANEL % D + lane % 8 * 8;
          WARP_BARRIER;
          #pragma unroll
          for (int i = lane / 8; i < 16; i += 4) {
            const int token = tile.row + warp * 16 + i;
            if (token >= rows) break;
            const int slot = slot_of<LONG_BEYOND>(places[3 * token + 1]);
            T* to = pool + ((long(slot / 32) * KV_HEADS + (out_head - HEADS) % KV_HEADS) * 32 + slot % 32) * D;
            *reinterpret_cast<uint4*>(to) = load_shared(own_panel + swizzled_pack<16>(i, lane % 8));
          }
          continue;
        }
#endif
        fence_proxy_async();
        WARP_BARRIER;
        if (lane == 0) tensor_store(made_map, tile.column + panel * PANEL, tile.row + warp * 16, own_panel);
      }
    };
    for (int index = first_tile; index < own_tiles; index += CLUSTERS) {
      const Tile tile = tile_at(index);
      if (!is_wanted(tile)) continue;
#ifndef PREPARES
      if (tile.is_half) {
        float sum[OWN / 2];
        compute_tile(tile, sum);
        continue;
      }
#endif
      float sum[COLUMNS / 2];
      compute_tile(tile, sum);
    }
    if (lane == 0) tensor_stores_wait<0>();
  }
  // Waits, because the other CTA may still multicast to this one or arrive at its barriers.
  cluster_barrier();
