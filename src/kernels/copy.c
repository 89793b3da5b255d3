  // Copies blocks of one pool within it: pairs of from and to.
  const int pair = GROUP_Y;
  const long size = long(KV) * 32 * D;
  const DEVICE T* from = pool + pairs[2 * pair] * size;
  DEVICE T* to = const_cast<DEVICE T*>(pool) + pairs[2 * pair + 1] * size;
  for (long i = THREAD; i < size; i += 256) to[i] = from[i];
  if (THREAD == 0 && pair == 0) done[0] = 1;
