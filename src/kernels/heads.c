  // One head of a token by one warp, normed and turned, from `from` to `head` in shared memory. Barriers
  // are for the group: every warp comes here, those without a head too, each with memory of its own.
  //
  // Before this: from, head, norm, is_normed, is_turned, position.
  {
    float squares = 0;
    for (int d = LANE; d < D; d += 32) {
      const float x = float(from[d]);
      head[d] = x;
      squares += x * x;
    }
    if (is_normed) {
      for (int mask = 16; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
      const float scale = RSQRT(squares / D + work[1]);
      // As the unfused operations round it.
      for (int d = LANE; d < D; d += 32) head[d] = float(T(head[d] * scale * norm[d]));
    }
  }
  BARRIER;
  if (is_turned) {
    for (int d = LANE; d < TURNED / 2; d += 32) {
      float sine, cosine;
      SINCOS(float(position) / work[4 + 2 * D + d], sine, cosine);
      const float a = head[d] * work[3], b = head[d + TURNED / 2] * work[3];
      head[d] = a * cosine - b * sine;
      head[d + TURNED / 2] = a * sine + b * cosine;
    }
  }
  BARRIER;
