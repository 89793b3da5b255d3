// Attention of arbitrary tokens of any sequences, each over its sequence's KV blocks up to its own position.
//
// Inputs: queries (tokens, HEADS, D), prepared by prepare.c; layer (layer.h); keys and values (blocks, KV_HEADS, 32,
// D); tables (block tables, packTables); places (positions and KV slots, packPlaces).
// Output: attended (tokens, HEADS, D).
// Template arguments: T, D, HEADS, KV_HEADS, ROTARY_DIMS, WINDOW, CHUNKED, CAPPED (softcap), SINKS of the layer;
// QUERIES, the query heads of one KV head that a CTA computes; WARPS per CTA.
// Grid: (1, HEADS / QUERIES, tokens) CTAs of WARPS warps.
#include "attention.h"
  constexpr int HEADS_PER_KV = HEADS / KV_HEADS;
  const int token = cta_z, kv = cta_y / (HEADS_PER_KV / QUERIES);
  const int first_head = cta_y * QUERIES;
  const int length = places[3 * token] + 1;
  const DEVICE int* table = tables + 2 + places[3 * token + 2] * (tables[0] + 1);
  const TokenRange range = split_range<WINDOW, CHUNKED, 1>(length, length, 0);
  const SequenceBlocks<T, D, KV_HEADS> blocks = {keys, values, table, tables[0], kv, range};
  LoadedTokens<T, D, WARPS> loaded;
  begin_blocks(blocks, loaded, lane, warp);
  SHARED float prepared[QUERIES * D];
  const long first = (long(token) * HEADS + first_head) * D;
  for (int j = thread_index; j < QUERIES * D; j += WARPS * 32) prepared[j] = float(queries[first + j]);
  BARRIER;
  SHARED float sums[WARPS * QUERIES * D], tops[WARPS * QUERIES], totals[WARPS * QUERIES];
  attend_blocks<QUERIES, CAPPED>(
      blocks, loaded, prepared, layer[LAYER_SCALE], layer[LAYER_SOFTCAP], lane, warp, sums, tops, totals);
  // All tokens are in the KV blocks already: no newest token to add.
  store_attention<D, WARPS, QUERIES, HEADS, 1, SINKS>(
      sums, tops, totals, false, prepared, prepared, layer_sinks<D, ROTARY_DIMS>(layer), token, 0,
      first_head, thread_index, attended);
