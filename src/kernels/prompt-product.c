// Multiplies the rows of prompts with a matrix by Hopper's wgmma; CUDA with compute capability 9.0 only. Optionally fuses the gate
// and the residual behind. Products of so many rows are bound by the power that a GPU may take: what counts is how often numbers
// are moved. So a cluster of DOWN times ACROSS groups has neighbouring tiles, and what some of them have in common is read once
// and copied to all of these.
//
// A tile is 128 rows and 256 columns; with GATED 128 of the gate and the 128 of up that belong to them. Two warpgroups have 64 rows
// each, with all their sums in registers. A warp of a third one copies what they multiply to shared memory, STEP numbers of each
// line at a time, in STAGES of such steps: a share of the tile's rows and of its columns, to all groups that have these. Barriers
// say what has come, and what all warps that multiply it are done with.
// Clusters take tiles in turns, those with the same rows one after the other, so that the L2 cache has what they read.
//
// Inputs: x (rows, K), weight (N, K) of T, sizes (rows), residual (rows, columns), any array if not used.
// Outputs: made (rows, columns): N columns, or with GATED half as many, silu(x gate) * (x up), where `gate` is the matrix's first
// half; maps: for each group where x and weight are, as copies take it.
// Constants: T of 16 bits, K, N, GATED, RESIDUAL; DOWN, ACROSS, GROUPS, STAGES.
// Groups: (GROUPS), of 384 threads, in clusters of DOWN * ACROSS. Dynamic shared memory for the stages, what warps make of 128
// columns, two barriers a stage, and what it takes to align them.
#include "bulk.h"
#include "cluster.h"
#include "tensor-copy.h"
#include "warpgroup-sums.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int ROWS = 128, COLUMNS = 256, HALF = COLUMNS / 2, OWN = GATED ? HALF : COLUMNS, MADE_COLUMNS = GATED ? N / 2 : N;
  constexpr int STEP = LINE_BYTES / 2, STEPS = K / STEP, WARPS = 8, MAP_BYTES = 128;
  constexpr int MATRIX = ROWS * LINE_BYTES, STAGE = MATRIX + COLUMNS * LINE_BYTES, MADE = 16 * HALF * 2;
  // Groups that multiply what a group copies.
  constexpr int NEIGHBOURS = DOWN + ACROSS - 1;
  // Clusters' rows of tiles that are gone through before the next columns: what these read is in the L2 cache then.
  constexpr int TOGETHER = 2048 / (ROWS * DOWN);
  const int rows = sizes[0], down = group_x % DOWN, across = group_x / DOWN % ACROSS;
  const unsigned stages = (dynamic_shared_memory() + 1023) / 1024 * 1024;
  const unsigned results = stages + STAGES * STAGE, full = results + WARPS * MADE, empty = full + STAGES * 8;
  if (thread_index == 0)
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(full + stage * 8, 1);
      barrier_init(empty + stage * 8, NEIGHBOURS * WARPS);
    }
  AWAIT_INPUTS;
  cluster_barrier();
  // The tiles of a cluster, in its order.
  const int row_tiles = (rows + ROWS * DOWN - 1) / (ROWS * DOWN);
  constexpr int COLUMN_TILES = N / (COLUMNS * ACROSS), CLUSTERS = GROUPS / (DOWN * ACROSS);
  struct Tile {
    int row, column; // the first ones, of those that are made
  };
  const auto tile_at = [&](int index) {
    const int first = index / (TOGETHER * COLUMN_TILES) * TOGETHER, of = index % (TOGETHER * COLUMN_TILES);
    const int together = min(TOGETHER, row_tiles - first);
    return Tile{((first + of % together) * DOWN + down) * ROWS, (of / together * ACROSS + across) * OWN};
  };
  const int own_tiles = row_tiles * COLUMN_TILES, first_tile = group_x / (DOWN * ACROSS);
  if (warp >= WARPS) {
    give_registers<40>();
    constexpr int ROW_SHARE = ROWS / ACROSS, COLUMN_SHARE = HALF / DOWN;
    char* const x_map = reinterpret_cast<char*>(maps) + group_x * 2 * MAP_BYTES;
    char* const weight_map = x_map + MAP_BYTES;
    if (warp == WARPS) {
      make_tensor_map(x_map, results, x, rows, K, ROW_SHARE, lane);
      make_tensor_map(weight_map, results + MAP_BYTES, weight, N, K, COLUMN_SHARE, lane);
    }
    if (warp == WARPS && lane == 0) {
      unsigned same_rows = 0, same_columns = 0;
      for (int i = 0; i < ACROSS; i++) same_rows |= 1u << (i * DOWN + down);
      for (int i = 0; i < DOWN; i++) same_columns |= 1u << (across * DOWN + i);
      int step = 0;
      for (int index = first_tile; index < own_tiles; index += CLUSTERS) {
        const Tile tile = tile_at(index);
        for (int s = 0; s < STEPS; s++, step++) {
          const int stage = step % STAGES;
          const unsigned to = stages + stage * STAGE, counted = full + stage * 8;
          if (step >= STAGES) barrier_wait(empty + stage * 8, (step / STAGES + 1) % 2);
          barrier_expect(counted, STAGE);
          const unsigned rows_to = to + across * ROW_SHARE * LINE_BYTES;
          const int first_row = tile.row + across * ROW_SHARE;
          if (ACROSS > 1) tensor_copy_to(same_rows, rows_to, x_map, s * STEP, first_row, counted);
          else tensor_copy(rows_to, x_map, s * STEP, first_row, counted);
          #pragma unroll
          for (int half = 0; half < 2; half++) {
            const unsigned columns_to = to + MATRIX + (half * HALF + down * COLUMN_SHARE) * LINE_BYTES;
            const int first_column = tile.column + half * (GATED ? MADE_COLUMNS : HALF) + down * COLUMN_SHARE;
            tensor_copy_to(same_columns, columns_to, weight_map, s * STEP, first_column, counted);
          }
        }
      }
    }
    WARP_BARRIER;
  } else {
    take_registers<232>();
    const auto done_with = [&](int stage) {
      // Those with the same rows, and then the others with the same columns.
      const int other = lane - ACROSS + (lane - ACROSS >= down);
      if (lane < NEIGHBOURS) barrier_arrive_at(lane < ACROSS ? lane * DOWN + down : across * DOWN + other, empty + stage * 8);
    };
    const unsigned made_here = results + warp * MADE;
    const auto chunk_at = [&](int row, int chunk) { return made_here + row * HALF * 2 + (chunk ^ row % 8) * 16; };
    int step = 0;
    for (int index = first_tile; index < own_tiles; index += CLUSTERS) {
      const Tile tile = tile_at(index);
      float sum[COLUMNS / 2];
      for (int s = 0; s < STEPS; s++, step++) {
        const int stage = step % STAGES;
        barrier_wait(full + stage * 8, step / STAGES % 2);
        const unsigned at = stages + stage * STAGE;
        const auto own = wgmma_operand(at + warp / 4 * 64 * LINE_BYTES), matrix = wgmma_operand(at + MATRIX);
        wgmma_fence();
        #pragma unroll
        for (int k = 0; k < STEP / 16; k++)
          wgmma_m64k16(sum, operand_behind(own, k * 32), operand_behind(matrix, k * 32), s > 0 || k > 0, x);
        wgmma_commit();
        if (s > 0) {
          wgmma_wait<1>();
          done_with((step + STAGES - 1) % STAGES);
        }
      }
      wgmma_wait<0>(sum);
      done_with((step + STAGES - 1) % STAGES);
      // A warp's 16 rows, 128 columns at a time: what is there before and what is made are whole lines in device memory.
      const int first = tile.row + warp * 16;
      const auto row_of = [&](int i) { return i * 2 + lane / 16; };
      const auto is_there = [&](int i) { return first + row_of(i) < rows; };
      const auto place = [&](int i, int column) { return long(first + row_of(i)) * MADE_COLUMNS + column + lane % 16 * 8; };
      #pragma unroll
      for (int half = 0; half < OWN / HALF; half++) {
        const int column = tile.column + half * HALF;
        if (RESIDUAL) {
          #pragma unroll
          for (int i = 0; i < 8; i++)
            store_shared(chunk_at(row_of(i), lane % 16), is_there(i) ? load_made(residual + place(i, column)) : uint4{});
          WARP_BARRIER;
        }
        #pragma unroll
        for (int j = 0; j < HALF / 8; j++)
          #pragma unroll
          for (int r = 0; r < 2; r++) {
            const unsigned at = chunk_at(lane / 4 + r * 8, j) + lane % 4 * 4;
            const float* sums = sum + half * 64 + j * 4 + r * 2;
            float two[2];
            unsigned before[1] = {};
            if (RESIDUAL) load_shared(before, at);
            #pragma unroll
            for (int c = 0; c < 2; c++) {
              two[c] = GATED ? gated_sum(sums[c], sums[64 + c], x) : sums[c];
              if (RESIDUAL) two[c] += float(reinterpret_cast<const T*>(before)[c]);
            }
            store_shared(at, pack_pair(two[0], two[1], x));
          }
        WARP_BARRIER;
        #pragma unroll
        for (int i = 0; i < 8; i++)
          if (is_there(i)) *reinterpret_cast<uint4*>(made + place(i, column)) = load_shared(chunk_at(row_of(i), lane % 16));
        WARP_BARRIER;
      }
    }
  }
  // Others may still copy to this group.
  cluster_barrier();
