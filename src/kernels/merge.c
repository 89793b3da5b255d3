  // Brings together what was computed of one sequence in several parts.
  const int token = GROUP_Z, head = GROUP_Y;
  const DEVICE float* part = parts + (long(token) * HEADS_ALL + head) * SPLITS * (D + 2);
  float highest = SINKS ? work[4 + 2 * D + TURNED / 2 + head] : -1e30f;
  for (int s = 0; s < SPLITS; s++) {
    const float top = part[s * (D + 2) + D];
    highest = top > highest ? top : highest;
  }
  float all = SINKS ? EXP(work[4 + 2 * D + TURNED / 2 + head] - highest) : 0;
  for (int s = 0; s < SPLITS; s++) {
    all += part[s * (D + 2) + D + 1] * EXP(part[s * (D + 2) + D] - highest);
  }
  for (int d = LANE; d < D; d += 32) {
    float result = 0;
    for (int s = 0; s < SPLITS; s++) {
      result += part[s * (D + 2) + d] * EXP(part[s * (D + 2) + D] - highest);
    }
    attended[(long(token) * HEADS_ALL + head) * D + d] = T(result / all);
  }
