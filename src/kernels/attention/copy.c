// Copies KV blocks within one pool (copy on write).
//
// Inputs: pool (blocks, KV_HEADS, 32, D), written in place; pairs (copies, 2) of source and destination block.
// Output: done (1), so that later launches can depend on this one.
// Template arguments: T, D, KV_HEADS.
// Grid: (1, copies) CTAs of 256 threads.
  const int pair = cta_y;
  const long size = long(KV_HEADS) * 32 * D;
  const DEVICE T* from = pool + pairs[2 * pair] * size;
  DEVICE T* to = const_cast<DEVICE T*>(pool) + pairs[2 * pair + 1] * size;
  for (long i = thread_index; i < size; i += 256) to[i] = from[i];
  if (thread_index == 0 && pair == 0) done[0] = 1;
