// Which tokens of a step belong to which sequence, and where its state is: four integers a sequence, as `packMoves`
// (recurrence.ts) writes them. From: below 0 where the sequence begins.
enum { MOVE_FIRST, MOVE_COUNT, MOVE_FROM, MOVE_TO };

/** The sequence that a token belongs to, by bisection: their first tokens ascend. */
template <int ROWS>
FUNCTION int row_of(const DEVICE int* moves, int token) {
  int low = 0, high = ROWS;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (moves[4 * middle + MOVE_FIRST] <= token) low = middle;
    else high = middle;
  }
  return low;
}
