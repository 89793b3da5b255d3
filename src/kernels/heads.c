  // One head of a token by one warp, normed and turned, from `from` to `head` in shared memory. Barriers
  // are for the group: every warp comes here, those without a head too, each with memory of its own.
  //
  // Before this: from, head, norm, is_normed, is_turned, position.
  constexpr int OWN_ANGLES = (TURNED / 2 + 31) / 32;
  float sines[OWN_ANGLES + 1], cosines[OWN_ANGLES + 1];
  {
    float squares = 0;
    for (int d = LANE; d < D; d += 32) {
      const float x = float(from[d]);
      head[d] = x;
      squares += x * x;
    }
    // While the head is on its way.
    if (is_turned) {
      for (int i = 0; i < OWN_ANGLES; i++) {
        const int d = i * 32 + LANE < TURNED / 2 ? i * 32 + LANE : 0;
        SINCOS(float(position) / work[4 + 2 * D + d], sines[i], cosines[i]);
      }
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
    for (int i = 0; i < OWN_ANGLES; i++) {
      const int d = i * 32 + LANE;
      if (d >= TURNED / 2) break;
      const float sine = sines[i], cosine = cosines[i];
      const float a = head[d] * work[3], b = head[d + TURNED / 2] * work[3];
      head[d] = a * cosine - b * sine;
      head[d + TURNED / 2] = a * sine + b * cosine;
    }
  }
  BARRIER;
