// How wgmma's operands lie in shared memory: lines of 128 bytes, which are 64 numbers of 16 bits of a row. The lines of
// all rows are a panel, and longer rows have several panels. A line's packs of 8 numbers are swizzled by its row. A
// panel begins at a multiple of 1,024 bytes.
constexpr unsigned LINE_BYTES = 128;

/** Where a pack of a row is, in panels of ROWS lines. */
template <int ROWS>
FUNCTION unsigned swizzled_pack(int row, int pack) {
  return (pack / 8 * ROWS + row) * LINE_BYTES + (pack % 8 ^ row % 8) * 16;
}

/**
 * The descriptor of an operand at `at`, with 8 lines to the next 8. `panels` is how many bytes panels are apart; only a
 * transposed operand goes on in the next panel.
 */
FUNCTION unsigned long long wgmma_operand(unsigned at, unsigned panels = 16) {
  constexpr unsigned long long EIGHT_LINES = 8 * LINE_BYTES, SWIZZLED = 1ull << 62;
  return at / 16 | (unsigned long long)(panels / 16) << 16 | EIGHT_LINES / 16 << 32 | SWIZZLED;
}

/** An operand so many bytes behind another, in multiples of 16. Only the lower word differs, so that no carry is computed. */
FUNCTION unsigned long long operand_behind(unsigned long long operand, unsigned bytes) {
  return operand >> 32 << 32 | unsigned(operand) + bytes / 16;
}
