// The rows of a step: which tokens belong to which sequence, and the slots of the sequence's recurrent state.
// `packMoves` (recurrence.ts) writes four integers per sequence, after a header of four whose first is the number of
// sequences. MOVE_FROM is negative if the sequence starts without a state.
enum { MOVE_FIRST, MOVE_COUNT, MOVE_FROM, MOVE_TO };

FUNCTION const DEVICE int* move_of(const DEVICE int* moves, int row) {
  return moves + 4 * (1 + row);
}

/** Returns the index in `moves` of a token's sequence, by binary search over the sequences' first tokens. */
FUNCTION int row_of(const DEVICE int* moves, int token) {
  // Decoding sequences come first, with one token each.
  if (token < moves[0] && move_of(moves, token)[MOVE_FIRST] == token) return token;
  int low = 0, high = moves[0];
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (move_of(moves, middle)[MOVE_FIRST] <= token) low = middle;
    else high = middle;
  }
  return low;
}
