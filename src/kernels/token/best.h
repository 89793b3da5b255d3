// Maps floats to integers of the same order, NaN above all, so that comparisons are exact under fast-math compilers.

union Bits {
  float number;
  unsigned bits;
};

FUNCTION unsigned order_of(float number) {
  Bits bits;
  bits.number = number;
  if ((bits.bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
  if (bits.bits == 0x80000000u) bits.bits = 0;
  return bits.bits & 0x80000000u ? ~bits.bits : bits.bits | 0x80000000u;
}

FUNCTION float number_of(unsigned order) {
  Bits bits;
  bits.bits = order & 0x80000000u ? order & 0x7fffffffu : ~order;
  return bits.number;
}

/** A number as an ordered integer, and its column. */
struct Entry {
  unsigned order, place;
};

/** Whether x is greater than `than`; ties go to the lower column. */
FUNCTION bool is_better(Entry x, Entry than) {
  return x.order > than.order || (x.order == than.order && x.place < than.place);
}

/** Returns the best of the lanes' entries, to every lane of the warp. */
FUNCTION Entry best_of_lanes(Entry best) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const Entry other = {SHUFFLE_XOR(best.order, mask), SHUFFLE_XOR(best.place, mask)};
    if (is_better(other, best)) best = other;
  }
  return best;
}
