// Copies blocks within one pool.
//
// Inputs: pool (blocks, KV_HEADS, 32, D), which is written to, pairs (copies, 2) of the blocks from and to.
// Output: done (1), for launches that must wait for this one.
// Constants: T, D, KV_HEADS.
// Groups: (1, copies) of 256 threads.
  const int pair = group_y;
  const long size = long(KV_HEADS) * 32 * D;
  const DEVICE T* from = pool + pairs[2 * pair] * size;
  DEVICE T* to = const_cast<DEVICE T*>(pool) + pairs[2 * pair + 1] * size;
  for (long i = thread_index; i < size; i += 256) to[i] = from[i];
  if (thread_index == 0 && pair == 0) done[0] = 1;
