// Finds the positions and KV slots of a step's tokens.
#pragma once

#include "operation.h"

namespace mlx_serve {

/**
 * A token's position in its sequence, its KV slot, and its sequence's row of the block tables. The slot is stored as
 * ~slot if the token is rotated with longrope's factors for long sequences.
 */
struct Place {
  int position, slot, row;
};
static_assert(sizeof(Place) == 3 * sizeof(int));

inline const int* table_of(const int* tables, int row) {
  return tables + 2 + static_cast<long>(row) * (tables[0] + 1);
}

/** Returns each sequence's newest token. Its slot is stored as ~slot from position `long_beyond` on (0: never). */
inline std::vector<Place> newest_places(const int* tables, int count, int long_beyond = 0) {
  std::vector<Place> places(count);
  for (int row = 0; row < count; row++) {
    const int* table = table_of(tables, row);
    const int position = table[-1] - 1;
    const int block = table[position / BLOCK_TOKENS];
    const int slot = block * BLOCK_TOKENS + position % BLOCK_TOKENS;
    const bool is_long = long_beyond > 0 && position >= long_beyond;
    places[row] = {position, is_long ? ~slot : slot, row};
  }
  return places;
}

/** Splits a step's tokens into spans of up to `most` tokens of a sequence; each with its first token's index. */
inline std::vector<std::pair<int, Span>>
spans_of(const int* tables, const Place* places, int count, int most) {
  std::vector<std::pair<int, Span>> spans;
  for (int token = 0; token < count; token++) {
    const auto& [position, slot, row] = places[token];
    const bool follows = token > 0 && places[token - 1].row == row &&
        places[token - 1].position + 1 == position && spans.back().second.count < most;
    if (follows) spans.back().second.count += 1;
    else spans.push_back({token, {1, position, table_of(tables, row)}});
  }
  return spans;
}

inline void check_tables(const mx::array& tables, int count) {
  check_ints(tables, "the tables are not int32 in a row");
  require(tables.size() >= 1 + 2 * static_cast<size_t>(count), "there are too few tables");
}

inline void check_places(const mx::array& places, int count) {
  check_ints(places, "the places are not int32 in a row");
  require(places.size() == 3 * static_cast<size_t>(count), "the places are not three numbers a token");
}

} // namespace mlx_serve
