// Layout of wgmma operands in shared memory, with 128-byte swizzle. 64 numbers of 16 bits of a row
// are a line of 128 bytes. The lines of all rows for the same 64 columns form a panel, which begins
// at a multiple of 1,024 bytes; wider matrices have several panels. Within a line the position of
// each pack of 8 numbers (16 bytes) is XORed with the row modulo 8, which avoids bank conflicts.
constexpr unsigned LINE_BYTES = 128;

/** Byte offset of a row's pack `pack` in panels of ROWS lines. */
template <int ROWS>
FUNCTION unsigned swizzled_pack(int row, int pack) {
  return (pack / 8 * ROWS + row) * LINE_BYTES + (pack % 8 ^ row % 8) * 16;
}

/**
 * wgmma's descriptor of the operand at shared address `at`. `panels`: bytes from one panel to the
 * next, which only transposed operands use.
 */
FUNCTION unsigned long long wgmma_operand(unsigned at, unsigned panels = 16) {
  constexpr unsigned long long EIGHT_LINES = 8 * LINE_BYTES, SWIZZLED = 1ull << 62;
  return at / 16 | (unsigned long long)(panels / 16) << 16 | EIGHT_LINES / 16 << 32 | SWIZZLED;
}

/**
 * The descriptor of `operand` moved by `bytes`, a multiple of 16. Changes the low word only, which saves the carry.
 */
FUNCTION unsigned long long advance_operand(unsigned long long operand, unsigned bytes) {
  return operand >> 32 << 32 | unsigned(operand) + bytes / 16;
}
