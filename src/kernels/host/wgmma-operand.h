// Layout of wgmma operands in shared memory, with 128-byte swizzle. A line is 128 bytes: 64 adjacent 16-bit numbers
// of a row. A panel has the lines of all rows for the same 64 columns, and begins at a multiple of 1,024 bytes; wider
// matrices have several panels. Within a line the position of each pack of 8 numbers (16 bytes) is XORed with the row
// modulo 8, which avoids bank conflicts.
constexpr unsigned LINE_BYTES = 128;

/** Returns the byte offset of pack `pack` of a row, in panels of ROWS lines. */
template <int ROWS>
FUNCTION unsigned swizzled_pack(int row, int pack) {
  return (pack / 8 * ROWS + row) * LINE_BYTES + (pack % 8 ^ row % 8) * 16;
}

/**
 * Returns wgmma's descriptor of the operand at shared address `at`. `panels` is the distance in bytes from one panel
 * to the next, which only transposed operands use.
 */
FUNCTION unsigned long long wgmma_operand(unsigned at, unsigned panels = 16) {
  constexpr unsigned long long EIGHT_LINES = 8 * LINE_BYTES, SWIZZLED = 1ull << 62;
  return at / 16 | (unsigned long long)(panels / 16) << 16 | EIGHT_LINES / 16 << 32 | SWIZZLED;
}

/** Returns `operand`, a descriptor, advanced by `bytes`, a multiple of 16. Adding to its low word saves the carry. */
FUNCTION unsigned long long advance_operand(unsigned long long operand, unsigned bytes) {
  return operand >> 32 << 32 | unsigned(operand) + bytes / 16;
}
