// Convolves each channel of the step's tokens with the last inputs of its sequence, and keeps the last ones. A thread
// has one channel of one token. That of a sequence's first token has all tokens that look at kept inputs, and writes
// the new ones: nobody else touches them.
//
// Inputs: x (tokens, WIDTH) with the channels from COLUMN on, pool (slots, TAPS - 1, CHANNELS), which is written
// to, moves (packMoves), weight (TAPS, CHANNELS) and bias (CHANNELS, or anything without BIASED).
// Output: convolved (tokens, CHANNELS).
// Constants: T, WIDTH, COLUMN, CHANNELS, TAPS, BIASED, SILU.
// Groups: (CHANNELS / 256, tokens) of 256 threads.
#include "moves.h"
  const int channel = group_x * 256 + thread_index, token = group_y;
  const DEVICE int* move = move_of(moves, row_of(moves, token));
  const int first = move[MOVE_FIRST], count = move[MOVE_COUNT], from = move[MOVE_FROM];
  constexpr int KEPT = TAPS - 1;
  const long size = long(KEPT) * CHANNELS;
  const int index = token - first;
  if (channel < CHANNELS && (index == 0 || index >= KEPT)) {
    const DEVICE T* own = x + long(first) * WIDTH + COLUMN + channel;
    float inputs[TAPS];
    for (int i = 0; i < KEPT; i++) {
      const int at = index - KEPT + i;
      inputs[i] = at >= 0 ? float(own[long(at) * WIDTH])
          : from >= 0     ? pool[from * size + long(i) * CHANNELS + channel]
                          : 0.0f;
    }
    const int end = index > 0 ? index + 1 : count < KEPT ? count : KEPT;
    for (int at = index; at < end; at++) {
      inputs[KEPT] = float(own[long(at) * WIDTH]);
      float sum = BIASED ? float(bias[channel]) : 0.0f;
      for (int tap = 0; tap < TAPS; tap++) sum += float(weight[tap * CHANNELS + channel]) * inputs[tap];
      for (int i = 0; i < KEPT; i++) inputs[i] = inputs[i + 1];
      convolved[long(first + at) * CHANNELS + channel] = T(SILU ? sum / (1.0f + EXP(-sum)) : sum);
    }
    if (index == 0) {
      // MLX takes inputs for constant; nothing else reads or writes these before the next launch.
      DEVICE float* to = const_cast<DEVICE float*>(pool) + move[MOVE_TO] * size + channel;
      for (int i = 0; i < KEPT; i++) {
        to[long(i) * CHANNELS] = count > KEPT ? float(own[long(count - KEPT + i) * WIDTH]) : inputs[i];
      }
    }
  }
