// Causal depthwise convolution: convolves each channel of the step's tokens with the last TAPS - 1 inputs of its
// sequence, and keeps the new last inputs. A thread has PACK adjacent channels of RUN tokens and loads all inputs
// before it computes. The thread with a sequence's first token also has every token that needs kept inputs, and alone
// reads and writes them, so no synchronization is needed.
//
// Inputs: x (tokens, WIDTH), with the channels at column COLUMN; pool (slots, TAPS - 1, CHANNELS), written in place;
// moves (packMoves); weight (TAPS, CHANNELS); bias (CHANNELS), any array without BIASED.
// Output: convolved (tokens, CHANNELS).
// Template arguments: T, WIDTH, COLUMN, CHANNELS, TAPS, BIASED, SILU; PACK, which divides WIDTH, COLUMN and CHANNELS;
// RUN.
// Grid: (CHANNELS / (128 PACK), tokens / RUN) CTAs of 128 threads.
#include "moves.h"
  /** PACK adjacent channels, loaded and stored as one access. */
  struct alignas(PACK * sizeof(T)) Inputs {
    T x[PACK];
  };
  struct alignas(PACK < 4 ? PACK * 4 : 16) Floats {
    float x[PACK];
  };
  constexpr int KEPT = TAPS - 1, MOST = RUN < KEPT ? KEPT : RUN;
  const int channel = (cta_x * 128 + thread_index) * PACK, begin = cta_y * RUN;
  if (channel >= CHANNELS) return;
  const int rows = moves[0];
  const long size = long(KEPT) * CHANNELS;
  // Kept inputs, written in place. MLX assumes inputs constant, but no other thread touches these channels.
  DEVICE float* states = const_cast<DEVICE float*>(pool) + channel;
  Floats weights[TAPS], biases;
  #pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
    weights[tap] = *reinterpret_cast<const DEVICE Floats*>(weight + tap * CHANNELS + channel);
  #pragma unroll
  for (int c = 0; c < PACK; c++) biases.x[c] = BIASED ? float(bias[channel + c]) : 0.0f;
  for (int row = row_of(moves, begin); row < rows; row++) {
    const DEVICE int* move = move_of(moves, row);
    const int first = move[MOVE_FIRST], count = move[MOVE_COUNT], from = move[MOVE_FROM];
    if (first >= begin + RUN) break;
    const bool is_first = first >= begin;
    const int index = is_first ? 0 : begin - first < KEPT ? KEPT : begin - first;
    const int least = is_first ? KEPT : 0, own_end = begin + RUN - first;
    const int wanted = own_end < least ? least : own_end, end = wanted < count ? wanted : count;
    const DEVICE T* own = x + long(first) * WIDTH + COLUMN + channel;
    Floats kept[KEPT];
    Inputs next[MOST];
    #pragma unroll
    for (int i = 0; i < KEPT; i++) {
      #pragma unroll
      for (int c = 0; c < PACK; c++) kept[i].x[c] = 0;
      if (is_first) {
        if (from >= 0) kept[i] = *reinterpret_cast<DEVICE Floats*>(states + from * size + long(i) * CHANNELS);
      } else if (index < end) {
        const Inputs before = *reinterpret_cast<const DEVICE Inputs*>(own + long(index - KEPT + i) * WIDTH);
        #pragma unroll
        for (int c = 0; c < PACK; c++) kept[i].x[c] = float(before.x[c]);
      }
    }
    #pragma unroll
    for (int i = 0; i < MOST; i++) {
      if (index + i < end) next[i] = *reinterpret_cast<const DEVICE Inputs*>(own + long(index + i) * WIDTH);
    }
    #pragma unroll
    for (int i = 0; i < MOST; i++) {
      if (index + i >= end) continue;
      Inputs result;
      #pragma unroll
      for (int c = 0; c < PACK; c++) {
        const float newest = float(next[i].x[c]);
        float sum = biases.x[c] + weights[KEPT].x[c] * newest;
        #pragma unroll
        for (int tap = 0; tap < KEPT; tap++) sum += weights[tap].x[c] * kept[tap].x[c];
        #pragma unroll
        for (int tap = 1; tap < KEPT; tap++) kept[tap - 1].x[c] = kept[tap].x[c];
        kept[KEPT - 1].x[c] = newest;
        result.x[c] = T(SILU ? DIVIDE(sum, 1.0f + EXP(-sum)) : sum);
      }
      *reinterpret_cast<DEVICE Inputs*>(convolved + long(first + index + i) * CHANNELS + channel) = result;
    }
    if (!is_first) continue;
    #pragma unroll
    for (int i = 0; i < KEPT; i++) {
      if (count > KEPT) {
        const Inputs last = *reinterpret_cast<const DEVICE Inputs*>(own + long(count - KEPT + i) * WIDTH);
        #pragma unroll
        for (int c = 0; c < PACK; c++) kept[i].x[c] = float(last.x[c]);
      }
      *reinterpret_cast<DEVICE Floats*>(states + move[MOVE_TO] * size + long(i) * CHANNELS) = kept[i];
    }
  }
