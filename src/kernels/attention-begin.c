  // How a group's warps go over the keys and values of one sequence: LANES lanes have a token, and take TOKENS
  // of them in a round. The first round's are on their way while queries are prepared.
  //
  // Before this: range; kv, table.
  constexpr int LANES = D % 256 == 0 ? 32 : D % 128 == 0 ? 16 : 8;
  constexpr int EACH = D / LANES;
  constexpr int WIDE = EACH % 8 == 0 ? 8 : EACH % 4 == 0 ? 4 : 1;
  constexpr int PACKS = EACH / WIDE;
  constexpr int BUNDLES = 32 / LANES;
  constexpr int TOKENS = 2;
  constexpr int ROUND = WARPS * BUNDLES * TOKENS;
  struct alignas(sizeof(T) * WIDE) Pack {
    T x[WIDE];
  };
  const int lane = LANE % LANES, bundle = LANE / LANES;
  const int first_token = begin + WARP * BUNDLES * TOKENS + bundle;
  Pack key_packs[TOKENS][PACKS], value_packs[TOKENS][PACKS];
  // Past the end the last token is read again, for nothing: all lanes go through the rounds together.
#define LOAD(packs, pool, base) \
  if (base - bundle < end) { \
    for (int t = 0; t < TOKENS; t++) { \
      const int next = base + t * BUNDLES < end ? base + t * BUNDLES : end - 1; \
      const long at = ((long(table[next / 32]) * KV + kv) * 32 + next % 32) * D + lane * EACH; \
      for (int p = 0; p < PACKS; p++) \
        packs[t][p] = *reinterpret_cast<const DEVICE Pack*>(pool + at + p * WIDE); \
    } \
  }
  LOAD(key_packs, keys, first_token)
  LOAD(value_packs, values, first_token)
