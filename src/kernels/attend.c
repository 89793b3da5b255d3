  // Queries of any tokens over the blocks of their sequences, up to their own positions.
  const int token = GROUP_Z / SPLITS, split = GROUP_Z % SPLITS;
  const int kv = GROUP_Y / (SHARERS / QUERIES), part = GROUP_Y % (SHARERS / QUERIES);
  const int length = places[3 * token] + 1;
  const DEVICE int* table = tables + 2 + places[3 * token + 2] * (tables[0] + 1);
  ATTENTION_BEGIN
  SHARED float prepared[QUERIES * D];
  const long first = (long(token) * KV * SHARERS + kv * SHARERS + part * QUERIES) * D;
  for (int j = THREAD; j < QUERIES * D; j += WARPS * 32) prepared[j] = float(prepared_queries[first + j]);
  BARRIER;
  const IN_SHARED float* queries = prepared;
  const IN_SHARED float* own_scores = prepared;
  const IN_SHARED float* own_value = prepared;
  ATTENTION
