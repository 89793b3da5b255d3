// Batched matrix product: multiplies each head's columns of x by that head's own matrix, with tensor cores; CUDA
// only. A CTA computes ROW_TILES * 16 rows by COLUMN_TILES * 16 outputs of one head and copies all of its operands to
// shared memory at once. Rows there are padded by 16 bytes, so that ldmatrix reads eight rows without bank conflicts.
// A warp computes 16 output columns for a ROW_WARPS-th of the rows.
//
// Inputs: x (rows, X_COLUMNS), with INPUTS columns of head h at column FIRST + h * STRIDE; weight (heads, OUTPUTS,
// INPUTS), or (heads, INPUTS, OUTPUTS) with TRANSPOSED.
// Output: made (rows, HEADS, OUTPUTS).
// Template arguments: the sizes above; T of 16 bits.
// Grid: (OUTPUTS / (COLUMN_TILES * 16), HEADS, rows / (ROW_TILES * 16)) CTAs of ROW_WARPS * COLUMN_TILES warps, with
// dynamic shared memory for the rows and the matrix.
#include "cuda-instructions.h"
  constexpr int THREADS = ROW_WARPS * COLUMN_TILES * 32, ROWS = ROW_TILES * 16, COLUMNS = COLUMN_TILES * 16;
  constexpr int MT = ROW_TILES / ROW_WARPS, PACKS = INPUTS / 8, ROW_BYTES = (INPUTS + 8) * 2;
  // Rows and columns of the matrix tile in shared memory, which keeps the matrix's stored orientation.
  constexpr int LINES = TRANSPOSED ? INPUTS : COLUMNS, LINE = TRANSPOSED ? COLUMNS : INPUTS;
  constexpr int LINE_BYTES = (LINE + 8) * 2;
  const int head = cta_y, first_row = cta_z * ROWS, first_column = cta_x * COLUMNS;
  const int rows = x_shape[0] - first_row;
  const unsigned rows_at = dynamic_shared_memory(), matrix_at = rows_at + ROWS * ROW_BYTES;
  const T* matrix = weight + long(head) * OUTPUTS * INPUTS;
  matrix += TRANSPOSED ? first_column : first_column * INPUTS;
  #pragma unroll 4
  for (int c = thread_index; c < LINES * (LINE / 8); c += THREADS) {
    const int line = c / (LINE / 8), pack = c % (LINE / 8);
    cp_async(matrix_at + line * LINE_BYTES + pack * 16, matrix + line * (TRANSPOSED ? OUTPUTS : INPUTS) + pack * 8, 16);
  }
  #pragma unroll 4
  for (int c = thread_index; c < ROWS * PACKS; c += THREADS) {
    const int row = c / PACKS, pack = c % PACKS;
    const T* from = x + long(first_row + row) * X_COLUMNS + FIRST + head * STRIDE + pack * 8;
    cp_async(rows_at + row * ROW_BYTES + pack * 16, from, row < rows ? 16 : 0);
  }
  cp_async_commit();
  const int column = warp % COLUMN_TILES * 16, top_row = warp / COLUMN_TILES * MT * 16;
  // Addresses of this lane's rows for ldmatrix.
  const unsigned own_rows = rows_at + (top_row + lane % 16) * ROW_BYTES + lane / 16 * 16;
  const unsigned own_lines = matrix_at + (TRANSPOSED
      ? lane % 16 * LINE_BYTES + column * 2 + lane / 16 * 16
      : (column + lane / 16 * 8 + lane % 8) * LINE_BYTES + lane / 8 % 2 * 16);
  float sum[MT][2][4] = {};
  cp_async_wait();
  BARRIER;
  #pragma unroll 4
  for (int k = 0; k < INPUTS / 16; k++) {
    unsigned a[MT][4], b[4];
    ldmatrix_x4<TRANSPOSED>(b, own_lines + k * (TRANSPOSED ? 16 * LINE_BYTES : 32));
    #pragma unroll
    for (int i = 0; i < MT; i++) ldmatrix_x4<false>(a[i], own_rows + i * 16 * ROW_BYTES + k * 32);
    #pragma unroll
    for (int i = 0; i < MT * 2; i++)
      mma_m16n8k16(sum[i / 2][i % 2], a[i / 2][0], a[i / 2][1], a[i / 2][2], a[i / 2][3], b[i % 2 * 2],
                   b[i % 2 * 2 + 1], x);
  }
  #pragma unroll
  for (int i = 0; i < MT * 4; i++) {
    const int row = top_row + i / 4 * 16 + i % 2 * 8 + lane / 4;
    const int output = first_column + column + i % 4 / 2 * 8 + lane % 4 * 2;
    const float* two = sum[i / 4][i % 4 / 2] + i % 2 * 2;
    if (row >= rows) continue;
    T* to = made + (long(first_row + row) * HEADS + head) * OUTPUTS + output;
    *reinterpret_cast<unsigned*>(to) = pack_pair(two[0], two[1], x);
  }
