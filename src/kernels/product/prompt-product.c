// Multiplies the rows of prompts with a matrix by Hopper's wgmma, and goes on with what is made; CUDA with compute capability 9.0
// only. A matrix has the columns of a gate and of what it gates (SwiGLU), or where PREPARES is defined those of queries, keys and
// values, whose heads are rotated and go where prepare.c writes them. Products of so many rows are bound by the power that a GPU may
// take: what counts is how far numbers are moved, and that tensor cores never wait. A cluster of two groups has tiles with the same
// columns: each copies half of what it reads of the matrix, to both.
//
// A tile is 128 rows and 128 columns of either kind, or two heads. Two warpgroups have 64 rows each, with all their sums in
// registers. A warp of a third one copies what they multiply to shared memory, STEP numbers of each line at a time, in STAGES of such
// steps. Barriers say what has arrived, and what all warps that multiply it are done with. What is made leaves by way of shared
// memory as well, PANEL columns of a warp's 16 rows at a time, while the next tile begins. Clusters take tiles in turns, those with
// the same rows one after the other, so that the L2 cache has what they read. Where half of them or fewer would have one in the
// last turn, gated tiles are halved then, 64 columns of either kind, for twice as many.
//
// Inputs: x (rows, K), weight (N, K) of T, whose first half is the gate, sizes (rows). With PREPARES also layer (layer.h), keys and
// values (blocks, KV_HEADS, 32, D), which are written to, and places (packPlaces).
// Outputs: made (rows, N / 2), silu(x gate) * (x up), or the queries (rows, HEADS * D); maps: for each group where x, weight and
// made are, as copies take it.
// Constants: T of 16 bits, K, N, GROUPS, STAGES; with PREPARES D of 128, HEADS, KV_HEADS, ROTARY_DIMS, and LAST_QUERIES, with which
// tiles of queries that have no sequence's last token are left out.
// Groups: (GROUPS), of 384 threads, in clusters of two. Dynamic shared memory for the stages, two panels a warp, two barriers a
// stage, and what it takes to align them.
#include "bulk.h"
#include "cluster.h"
#include "prompt-heads.h"
#include "tensor-copy.h"
#include "warpgroup-sums.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int ROWS = 128, COLUMNS = 256, OWN = COLUMNS / 2;
  constexpr int STEP = LINE_BYTES / 2, STEPS = K / STEP, WARPS = 8, TOGETHER = 2, MAPS = 3, MAP_BYTES = 128;
  constexpr int MATRIX = ROWS * LINE_BYTES, STAGE = MATRIX + COLUMNS * LINE_BYTES, HALF_STAGE = MATRIX + OWN * LINE_BYTES;
  constexpr int PANEL = LINE_BYTES / 2, PANEL_BYTES = 16 * LINE_BYTES;
  // How many columns of the matrix make one; from a tile's first columns of one kind to those of the other, and to the next tile.
#ifdef PREPARES
  constexpr int MADE_COLUMNS = HEADS * D, MADE_OF = 1, SECOND = OWN, NEXT = COLUMNS;
#else
  constexpr int MADE_COLUMNS = N / 2, MADE_OF = 2, SECOND = MADE_COLUMNS, NEXT = OWN;
#endif
  // Of the columns of each kind, that a group of the cluster copies; half a tile has as many.
  constexpr int SHARE = OWN / TOGETHER;
  const int rows = sizes[0], rank = group_x % TOGETHER;
  const unsigned stages = (dynamic_shared_memory() + 1023) / 1024 * 1024;
  const unsigned panels = stages + STAGES * STAGE, full = panels + WARPS * 2 * PANEL_BYTES, empty = full + STAGES * 8;
  if (thread_index == 0)
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(full + stage * 8, 1);
      barrier_init(empty + stage * 8, TOGETHER * WARPS);
    }
  AWAIT_INPUTS;
  char* const x_map = reinterpret_cast<char*>(maps) + group_x * MAPS * MAP_BYTES;
  char *const weight_map = x_map + MAP_BYTES, *const made_map = weight_map + MAP_BYTES;
  if (warp == WARPS) {
    make_tensor_map(x_map, panels, x, rows, K, ROWS, lane);
    make_tensor_map(weight_map, panels + MAP_BYTES, weight, N, K, SHARE, lane);
    make_tensor_map(made_map, panels + 2 * MAP_BYTES, made, rows, MADE_COLUMNS, 16, lane);
  }
  cluster_barrier();
  // The tiles of a cluster, in its order: of some 2,048 rows before the next columns, which the L2 cache has then.
  constexpr int BAND = 2048 / (ROWS * TOGETHER), COLUMN_TILES = N / COLUMNS, CLUSTERS = GROUPS / TOGETHER;
  const int row_tiles = (rows + ROWS * TOGETHER - 1) / (ROWS * TOGETHER);
  const int all_tiles = row_tiles * COLUMN_TILES, left = all_tiles % CLUSTERS;
  const int halved = MADE_OF > 1 && left * 2 <= CLUSTERS ? left : 0, whole = all_tiles - halved, own_tiles = whole + halved * 2;
  struct Tile {
    int row, column; // the first ones, of the matrix
    bool is_half;
  };
  const auto tile_at = [&](int turn) {
    const int past = max(turn - whole, 0), index = min(turn, whole) + past / 2;
    const int first = index / (BAND * COLUMN_TILES) * BAND, of = index % (BAND * COLUMN_TILES);
    const int band = min(BAND, row_tiles - first);
    return Tile{((first + of % band) * TOGETHER + rank) * ROWS, of / band * NEXT + past % 2 * SHARE, turn >= whole};
  };
  const auto is_wanted = [&](const Tile& tile) {
#ifdef PREPARES
    if (!LAST_QUERIES || tile.column >= MADE_COLUMNS) return true;
    const int first = tile.row - rank * ROWS, behind = first + TOGETHER * ROWS;
    return behind >= rows || places[3 * behind + 2] != places[3 * first + 2];
#else
    return true;
#endif
  };
  const int first_tile = group_x / TOGETHER;
  if (warp >= WARPS) {
    give_registers<40>();
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
            tensor_copy_to((1u << TOGETHER) - 1, to + MATRIX + line * LINE_BYTES, weight_map, s * STEP, first, counted);
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
    take_registers<232>();
    acquire_tensor_map(made_map);
    const auto done_with = [&](int stage) {
      if (lane < TOGETHER) barrier_arrive_at(lane, empty + stage * 8);
    };
    int step = 0;
    const auto make_tile = [&](const Tile& tile, auto& sum) {
      constexpr int SUMS = sizeof(sum) / sizeof(float), PANELS = SUMS * 2 / MADE_OF / PANEL;
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
#ifdef PREPARES
      const int head = tile.column / D, own_row = tile.row + warp * 16 + lane / 4;
      const int positions[2] = {places[3 * min(own_row, rows - 1)], places[3 * min(own_row + 8, rows - 1)]};
      rotate_heads<D, HEADS, KV_HEADS, ROTARY_DIMS>(sum, layer, head, positions, lane, x);
#endif
      #pragma unroll
      for (int panel = 0; panel < PANELS; panel++) {
        const unsigned own_panel = panels + (warp * 2 + panel % 2) * PANEL_BYTES;
#ifdef PREPARES
        const int made_head = head + panel * PANEL / D;
        const bool is_copied = made_head < HEADS;
#else
        constexpr bool is_copied = true;
#endif
        // What leaves by a tensor copy may be followed by the next panel.
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
          // To the slots of keys or values. MLX takes inputs for constant; launches that read these depend on this one's output.
          T* pool = const_cast<T*>(made_head >= HEADS + KV_HEADS ? values : keys) + panel * PANEL % D + lane % 8 * 8;
          WARP_BARRIER;
          #pragma unroll
          for (int i = lane / 8; i < 16; i += 4) {
            const int token = tile.row + warp * 16 + i;
            if (token >= rows) break;
            const int slot = places[3 * token + 1];
            T* to = pool + ((long(slot / 32) * KV_HEADS + (made_head - HEADS) % KV_HEADS) * 32 + slot % 32) * D;
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
        make_tile(tile, sum);
        continue;
      }
#endif
      float sum[COLUMNS / 2];
      make_tile(tile, sum);
    }
    if (lane == 0) tensor_stores_wait<0>();
  }
  // Others may still copy to this group.
  cluster_barrier();
