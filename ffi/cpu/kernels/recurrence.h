// Recurrent layers, token by token: causal depthwise convolutions, and linear recurrences (scans).
// Part of kernels.cpp.
#pragma once

#include "rows.h"

namespace mlx_serve {
namespace VARIANT {

/** Returns a token's input. Tokens below 0 belong to the last call; null if the sequence begins with this one. */
static INLINE const float* input_at(const Convolution& of, const ConvolutionRow& row, int token) {
  if (token >= 0) return row.x + token * row.x_stride;
  return row.before ? row.before + (long)(of.taps - 1 + token) * of.channels : nullptr;
}

static void convolve(const Convolution& of, const ConvolutionRow& row, int from, int to) {
  const int kept = of.taps - 1;
  for (int t = 0; t < row.count; t++) {
    float* out = row.out + (long)t * of.channels;
    for (int c = from; c < to; c++) out[c] = of.bias ? of.bias[c] : 0;
    for (int tap = 0; tap < of.taps; tap++) {
      const float* x = input_at(of, row, t - kept + tap);
      const float* weight = of.weight + (long)tap * of.channels;
      for (int c = from; x && c < to; c++) out[c] += weight[c] * x[c];
    }
    if (!of.silu) continue;
    int c = from;
    for (; c + LANES <= to; c += LANES) {
      const Floats x = load(out + c);
      store(out + c, x * sigmoid(x));
    }
    if (c < to) {
      const Floats x = load_some(out + c, to - c, 0);
      store_some(out + c, x * sigmoid(x), to - c);
    }
  }
  // Copies the oldest input first, because `after` may be the same memory as `before`.
  for (int i = 0; i < kept; i++) {
    const float* x = input_at(of, row, row.count - kept + i);
    float* after = row.after + (long)i * of.channels;
    for (int c = from; c < to; c++) after[c] = x ? x[c] : 0;
  }
}

/** Runs the recurrence over all tokens for R rows of the state, kept in registers; a state row is N vectors. */
template <int N, int R>
static INLINE void scan_some(const Scan& of, const ScanRow& row, int first) {
  Floats state[R][N];
  for (int r = 0; r < R; r++) {
    for (int i = 0; i < N; i++) {
      state[r][i] = row.before ? load(row.before + ((long)(first + r) * N + i) * LANES) : Floats{};
    }
  }
  for (int t = 0; t < row.count; t++) {
    const float* key = row.keys + t * row.key_stride;
    const float* query = row.queries + t * row.query_stride;
    const float* decays = row.decays + t * row.decay_stride;
    const float beta = row.betas[t * row.beta_stride];
    const float* find = of.erases ? row.finds + t * row.value_stride : key;
    const float* put = of.erases ? row.puts + t * row.value_stride : key;
    for (int r = 0; r < R; r++) {
      Floats* s = state[r];
      float added = row.values[t * row.value_stride + first + r];
      Floats found = {};
      for (int i = 0; i < N; i++) {
        s[i] *= of.by_feature ? load(decays + i * LANES) : all(decays[0]);
        if (of.corrects || of.erases) found += s[i] * load(find + i * LANES);
      }
      if (of.corrects) added -= sum(found);
      added *= beta;
      const float erased = of.erases ? sum(found) : 0;
      Floats read = {};
      for (int i = 0; i < N; i++) {
        s[i] += added * load(key + i * LANES);
        if (of.erases) s[i] -= erased * load(put + i * LANES);
        read += s[i] * load(query + i * LANES);
      }
      row.out[t * row.out_stride + first + r] = sum(read);
    }
  }
  for (int r = 0; r < R; r++) {
    for (int i = 0; i < N; i++) store(row.after + ((long)(first + r) * N + i) * LANES, state[r][i]);
  }
}

template <int N>
static void scan_rows(const Scan& of, const ScanRow& row, int from, int to) {
  constexpr int R = N <= 8 ? 2 : 1;
  int at = from;
  for (; at + R <= to; at += R) scan_some<N, R>(of, row, at);
  for (; at < to; at++) scan_some<N, 1>(of, row, at);
}

/** Computes a scan for any key size, with the state in memory. */
static void scan_any(const Scan& of, const ScanRow& row, int from, int to) {
  const int dim = of.key_dim;
  for (int at = from; at < to; at++) {
    float* s = row.after + (long)at * dim;
    for (int i = 0; i < dim; i++) s[i] = row.before ? row.before[(long)at * dim + i] : 0;
    for (int t = 0; t < row.count; t++) {
      const float* key = row.keys + t * row.key_stride;
      const float* query = row.queries + t * row.query_stride;
      const float* decays = row.decays + t * row.decay_stride;
      const float* find = of.erases ? row.finds + t * row.value_stride : key;
      const float* put = of.erases ? row.puts + t * row.value_stride : key;
      float added = row.values[t * row.value_stride + at], found = 0, read = 0;
      for (int i = 0; i < dim; i++) {
        s[i] *= decays[of.by_feature ? i : 0];
        if (of.corrects || of.erases) found += s[i] * find[i];
      }
      added = (of.corrects ? added - found : added) * row.betas[t * row.beta_stride];
      for (int i = 0; i < dim; i++) {
        s[i] += added * key[i];
        if (of.erases) s[i] -= found * put[i];
        read += s[i] * query[i];
      }
      row.out[t * row.out_stride + at] = read;
    }
  }
}

static void scan(const Scan& of, const ScanRow& row, int from, int to) {
  switch (of.key_dim % LANES == 0 ? of.key_dim / LANES : 0) {
    case 1: return scan_rows<1>(of, row, from, to);
    case 2: return scan_rows<2>(of, row, from, to);
    case 4: return scan_rows<4>(of, row, from, to);
    case 6: return scan_rows<6>(of, row, from, to);
    case 8: return scan_rows<8>(of, row, from, to);
    case 12: return scan_rows<12>(of, row, from, to);
    case 16: return scan_rows<16>(of, row, from, to);
    default: return scan_any(of, row, from, to);
  }
}

} // namespace VARIANT
} // namespace mlx_serve
