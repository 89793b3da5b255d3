  // Attention of up to 8 queries that share their keys, by tensor cores: queries times keys, then values times
  // what has come of it. In the first product a lane has query `high` and tokens 2 `low` and 2 `low` + 1, just
  // what it brings into the second, where it has queries 2 `low` and 2 `low` + 1. The order in which a head's
  // numbers are summed is free: it is that in which they were loaded.
  //
  // Before this: tiles-begin; queries[QUERIES * D] in shared memory.
  unsigned query[D / 32][4];
  #pragma unroll
  for (int i = 0; i < D / 8; i++) {
    const int d = high * D + i / 4 * 32 + low * 8 + i % 4 * 2;
    query[i / 4][i % 4] = high < QUERIES ? mlx_serve_pack(queries[d], queries[d + 1], keys) : 0;
  }
  const float scale = CAPPED ? 1 : work[0];
  float sum[D / 16][4] = {}, top = -1e30f, total = 0;
  long next_block = block_at(first_tile + WARPS);
  for (int tile = first_tile; tile < past; tile += WARPS) {
    float score[EIGHTS][4] = {};
    #pragma unroll
    for (int i = 0; i < EIGHTS * (D / 32); i++) {
      const unsigned* q = query[i / EIGHTS];
      const uint4 k = key_packs[i % EIGHTS][i / EIGHTS];
      mlx_serve_mma(score[i % EIGHTS], q[0], 0, q[1], 0, k.x, k.y, keys);
      mlx_serve_mma(score[i % EIGHTS], q[2], 0, q[3], 0, k.z, k.w, keys);
    }
    load_keys(tile + WARPS, next_block);
    float most = top;
    #pragma unroll
    for (int i = 0; i < EIGHTS * 2; i++) {
      float& x = score[i / 2][i % 2];
      if (CAPPED) x = work[2] * TANH(x * (work[0] / work[2]));
      const int t = tile * TILE + i / 2 * 8 + low * 2 + i % 2;
      if (t < begin || t >= end) x = -3e38f;
      most = fmaxf(most, x);
    }
    most = fmaxf(most, SHUFFLE_XOR(most, 1));
    most = fmaxf(most, SHUFFLE_XOR(most, 2));
    const float keep = EXP((top - most) * scale);
    top = most;
    total *= keep;
    unsigned b[2] = {};
    #pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
      const float x = EXP((score[i][0] - most) * scale), y = EXP((score[i][1] - most) * scale);
      total += x + y;
      b[i] = mlx_serve_pack(x, y, keys);
    }
    const float keeps[2] = {__shfl_sync(~0u, keep, low * 8), __shfl_sync(~0u, keep, low * 8 + 4)};
    #pragma unroll
    for (int i = 0; i < D / 16; i++) {
      // The same number of two tokens in one register.
      unsigned a[4] = {};
      #pragma unroll
      for (int t = 0; t < EIGHTS; t++) {
        const uint4 u = value_packs[t * 2][i / 4], v = value_packs[t * 2 + 1][i / 4];
        const unsigned x = i % 4 == 0 ? u.x : i % 4 == 1 ? u.y : i % 4 == 2 ? u.z : u.w;
        const unsigned y = i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
        a[t * 2] = __byte_perm(x, y, 0x5410);
        a[t * 2 + 1] = __byte_perm(x, y, 0x7632);
      }
      #pragma unroll
      for (int j = 0; j < 4; j++) sum[i][j] *= keeps[j % 2];
      mlx_serve_mma(sum[i], a[0], a[1], a[2], a[3], b[0], b[1], keys);
    }
    load_values(tile + WARPS, next_block);
    next_block = block_at(tile + 2 * WARPS);
  }
  SHARED float sums[WARPS][QUERIES][D], tops[WARPS][QUERIES], totals[WARPS][QUERIES];
  total += SHUFFLE_XOR(total, 1);
  total += SHUFFLE_XOR(total, 2);
  if (low == 0 && high < QUERIES) {
    tops[WARP][high] = top * scale;
    totals[WARP][high] = total;
  }
  #pragma unroll
  for (int i = 0; i < D / 4; i++) {
    const int q = low * 2 + i % 2, d = i / 16 * 64 + high * 8 + i / 2 % 8;
    if (q < QUERIES) sums[WARP][q][d] = sum[i / 4][i % 4];
  }
