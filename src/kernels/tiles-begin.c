  // How a group's warps go over the keys and values of one sequence by tensor cores; CUDA only. A warp takes a
  // tile of TILE tokens. A lane has of the keys of each 8 token `high`, and of the values tokens 2 `low` and
  // 2 `low` + 1. The first are on their way while queries are prepared.
  //
  // Before this: range; kv, table.
  constexpr int TILE = 8, EIGHTS = TILE / 8;
  const int high = LANE / 4, low = LANE % 4;
  const int first_tile = begin / TILE + WARP, past = begin < end ? (end + TILE - 1) / TILE : 0;
  const int last_block = tables[0] - 1;
  uint4 key_packs[EIGHTS][D / 32], value_packs[EIGHTS * 2][D / 64];
  // Places out of range may hold anything: the nearest token is read again, for nothing.
  auto place = [&](int tile, int t) { return min(max(tile * TILE + t, begin), end - 1) % 32 * D; };
  auto block_at = [&](int tile) { return (long(table[min(tile * TILE / 32, last_block)]) * KV + kv) * 32 * D; };
  auto load_keys = [&](int tile, long block) {
    if (tile >= past) return;
    #pragma unroll
    for (int i = 0; i < EIGHTS * (D / 32); i++) {
      const int t = i % EIGHTS, p = i / EIGHTS;
      const T* from = keys + block + place(tile, t * 8 + high) + p * 32 + low * 8;
      key_packs[t][p] = *reinterpret_cast<const uint4*>(from);
    }
  };
  auto load_values = [&](int tile, long block) {
    if (tile >= past) return;
    #pragma unroll
    for (int i = 0; i < EIGHTS * 2 * (D / 64); i++) {
      const int t = i % (EIGHTS * 2), p = i / (EIGHTS * 2);
      const T* from = values + block + place(tile, t / 2 * 8 + low * 2 + t % 2) + p * 64 + high * 8;
      value_packs[t][p] = *reinterpret_cast<const uint4*>(from);
    }
  };
  const long first_block = block_at(first_tile);
  load_keys(first_tile, first_block);
  load_values(first_tile, first_block);
