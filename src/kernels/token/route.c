// MoE routing: chooses each token's experts and their weights (`Routing` in routing.ts). One warp per token; a lane
// has every 32nd expert. With DIMS the router's scores are computed here too, which pays for few tokens: all warps of
// the CTA multiply the token by the router matrix, two rows at a time.
//
// Inputs: raw (tokens, WIDTH): the logits of EXPERTS experts, and with GATED one for the shared experts' gate; or,
// with DIMS, the tokens (tokens, DIMS). matrix (WIDTH, DIMS): the router's, any array without DIMS. numbers: the
// scale at 0, the corrections (EXPERTS) from 8 on if CORRECTED.
// Outputs: chosen (tokens, EACH + ALWAYS), and shares, their weights, of the same shape.
// Template arguments: T, WIDTH, DIMS (0: logits are given), EXPERTS, EACH chosen per token, ALWAYS (shared experts),
// GATED, SOFTMAX, CORRECTED, NORMALIZED; GROUPS of experts, ranked by the sum of their BEST highest scores: experts
// outside the KEPT best groups get the score 0, or with LEAVES_OUT are excluded; WARPS.
// Grid: tokens CTAs of WARPS warps.
  constexpr int OWN = (EXPERTS + 31) / 32, ALL = EACH + ALWAYS, GROUP = EXPERTS / GROUPS;
  constexpr float LOWEST = -3e38f;
  SHARED float made[DIMS > 0 ? WIDTH : 1];
  const DEVICE T* from = raw + long(cta_x) * (DIMS > 0 ? DIMS : WIDTH);
  if (DIMS > 0) {
    struct alignas(16) Pack {
      T x[16 / sizeof(T)];
    };
    constexpr int WIDE = 16 / sizeof(T), PACKS = DIMS / WIDE;
    const DEVICE Pack* token = reinterpret_cast<const DEVICE Pack*>(from);
    const DEVICE Pack* rows = reinterpret_cast<const DEVICE Pack*>(matrix);
    for (int first = 2 * warp; first < WIDTH; first += 2 * WARPS) {
      const int next = first + 1 < WIDTH ? first + 1 : first;
      float sum[2] = {0.0f, 0.0f};
      #pragma unroll WIDE
      for (int i = lane; i < PACKS; i += 32) {
        const Pack own = token[i], one = rows[long(first) * PACKS + i], other = rows[long(next) * PACKS + i];
        for (int k = 0; k < WIDE; k++) {
          sum[0] += float(own.x[k]) * float(one.x[k]);
          sum[1] += float(own.x[k]) * float(other.x[k]);
        }
      }
      for (int mask = 16; mask > 0; mask /= 2) {
        sum[0] += SHUFFLE_XOR(sum[0], mask);
        sum[1] += SHUFFLE_XOR(sum[1], mask);
      }
      if (lane == 0) {
        made[first] = float(T(sum[0]));
        made[next] = float(T(next > first ? sum[1] : sum[0]));
      }
    }
    BARRIER;
    if (warp > 0) return;
  }
  auto score_at = [&](int expert) { return DIMS > 0 ? made[expert] : float(from[expert]); };
  float scores[OWN], ranks[OWN];
  float highest = LOWEST, total = 0;
  for (int i = 0; i < OWN; i++) {
    const int expert = i * 32 + lane;
    scores[i] = expert < EXPERTS ? score_at(expert) : LOWEST;
    highest = scores[i] > highest ? scores[i] : highest;
  }
  if (SOFTMAX) {
    for (int mask = 16; mask > 0; mask /= 2) {
      const float other = SHUFFLE_XOR(highest, mask);
      highest = other > highest ? other : highest;
    }
    for (int i = 0; i < OWN; i++) {
      scores[i] = EXP(scores[i] - highest);
      total += scores[i];
    }
    for (int mask = 16; mask > 0; mask /= 2) total += SHUFFLE_XOR(total, mask);
    for (int i = 0; i < OWN; i++) scores[i] /= total;
  } else {
    for (int i = 0; i < OWN; i++) scores[i] = 1.0f / (1.0f + EXP(-scores[i]));
  }
  for (int i = 0; i < OWN; i++) {
    const int expert = i * 32 + lane;
    ranks[i] = expert >= EXPERTS ? LOWEST : CORRECTED ? scores[i] + numbers[8 + expert] : scores[i];
  }
  // Finds and removes the best remaining expert, first within each lane, then across lanes. `fallback` is chosen if
  // all scores are NaN, so that the index is always valid.
  float value;
  int index;
#define FIND_BEST(first, last, fallback) \
  value = LOWEST; \
  index = fallback; \
  for (int i = 0; i < OWN; i++) { \
    const int expert = i * 32 + lane; \
    if (expert >= (first) && expert < (last) && left[i] > value) { \
      value = left[i]; \
      index = expert; \
    } \
  } \
  for (int mask = 16; mask > 0; mask /= 2) { \
    const float other = SHUFFLE_XOR(value, mask); \
    const int at = int(SHUFFLE_XOR(float(index), mask)); \
    if (other > value || (other == value && at < index)) { \
      value = other; \
      index = at; \
    } \
  } \
  for (int i = 0; i < OWN; i++) \
    if (i * 32 + lane == index) left[i] = LOWEST;
  float left[OWN];
  if (KEPT < GROUPS) {
    float worth[GROUPS];
    for (int i = 0; i < OWN; i++) left[i] = ranks[i];
    for (int group = 0; group < GROUPS; group++) {
      worth[group] = 0;
      for (int k = 0; k < BEST; k++) {
        FIND_BEST(group * GROUP, (group + 1) * GROUP, group * GROUP + k)
        worth[group] += value;
      }
    }
    for (int i = 0; i < OWN; i++) {
      const int own = (i * 32 + lane) / GROUP;
      float mine = 0;
      for (int group = 0; group < GROUPS; group++) mine = group == own ? worth[group] : mine;
      int better = 0;
      for (int group = 0; group < GROUPS; group++)
        better += worth[group] > mine || (worth[group] == mine && group > own);
      if (i * 32 + lane < EXPERTS && better >= KEPT) ranks[i] = LEAVES_OUT ? LOWEST : 0.0f;
    }
  }
  for (int i = 0; i < OWN; i++) left[i] = ranks[i];
  int own_expert = 0;
  float own_share = 0, sum = 0;
  for (int k = 0; k < EACH; k++) {
    FIND_BEST(0, EXPERTS, k)
    float share = 0;
    for (int i = 0; i < OWN; i++)
      if (i * 32 + lane == index) share = scores[i];
    for (int mask = 16; mask > 0; mask /= 2) share += SHUFFLE_XOR(share, mask);
    sum += share;
    if (lane == k) {
      own_expert = index;
      own_share = share;
    }
  }
#undef FIND_BEST
  own_share *= NORMALIZED ? numbers[0] / sum : numbers[0];
  if (lane >= EACH) {
    own_expert = EXPERTS + lane - EACH;
    own_share = GATED ? 1.0f / (1.0f + EXP(-score_at(GATED ? EXPERTS : 0))) : 1.0f;
  }
  if (lane < ALL) {
    chosen[long(cta_x) * ALL + lane] = own_expert;
    shares[long(cta_x) * ALL + lane] = own_share;
  }
