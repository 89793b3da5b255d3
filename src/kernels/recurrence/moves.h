// Which tokens of a step belong to which sequence, and where its state is: four integers a sequence, as `packMoves`
// (recurrence.ts) writes them, behind four whose first is the number of sequences. From: below 0 where the sequence
// begins.
enum { MOVE_FIRST, MOVE_COUNT, MOVE_FROM, MOVE_TO };

FUNCTION const DEVICE int* move_of(const DEVICE int* moves, int row) {
  return moves + 4 * (1 + row);
}

/** The sequence that a token belongs to, by bisection: their first tokens ascend. */
FUNCTION int row_of(const DEVICE int* moves, int token) {
  // Sequences that decode come first, with a token each.
  if (token < moves[0] && move_of(moves, token)[MOVE_FIRST] == token) return token;
  int low = 0, high = moves[0];
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (move_of(moves, middle)[MOVE_FIRST] <= token) low = middle;
    else high = middle;
  }
  return low;
}
