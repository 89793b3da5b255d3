// Operations on one row of numbers: RMSNorm, gates, argmax, softmax, token masks. Part of kernels.cpp.
#pragma once

#include "../kernels.h"
#include "vectors.h"

extern "C" float logf(float);

namespace mlx_serve {
namespace VARIANT {

static void norm(const float* x, const float* weight, int count, float eps, float* out) {
  Floats squares = {};
  int i = 0;
  for (; i + LANES <= count; i += LANES) squares += load(x + i) * load(x + i);
  float whole = sum(squares);
  for (int j = i; j < count; j++) whole += x[j] * x[j];
  const float scale = 1.0f / __builtin_sqrtf(whole / count + eps);
  for (int j = 0; j < count; j++) out[j] = weight ? x[j] * scale * weight[j] : x[j] * scale;
}

static INLINE Floats gated(Gate kind, Floats x, Floats up) {
  // GELU, approximated by tanh: (1 + tanh(u)) / 2 is sigmoid(2u).
  const Floats inner = kind == Gate::silu ? x : 1.5957691216f * (x + 0.044715f * x * x * x);
  return x * sigmoid(inner) * up;
}

static void gate(Gate kind, const float* gates, const float* ups, int count, float* out) {
  int i = 0;
  for (; i + LANES <= count; i += LANES) store(out + i, gated(kind, load(gates + i), load(ups + i)));
  if (i == count) return;
  const Floats x = load_some(gates + i, count - i, 0);
  store_some(out + i, gated(kind, x, load_some(ups + i, count - i, 0)), count - i);
}

static void best(const float* x, int count, unsigned* index, float* most) {
  Floats found = all(-__builtin_inff());
  Ints nans = {};
  const auto visit = [&](Floats values) {
    found = max(values, found);
    nans |= values != values;
  };
  int i = 0;
  for (; i + LANES <= count; i += LANES) visit(load(x + i));
  if (i < count) visit(load_some(x + i, count - i, x[i]));
  const float top = highest(found);
  bool any = false;
  for (int lane = 0; lane < LANES; lane++) any |= nans[lane] != 0;
  *most = any ? __builtin_nanf("") : top;
  unsigned at = 0;
  while (!any && x[at] != top) at++;
  *index = at;
}

static float log_sum_exp(const float* x, int count) {
  unsigned index;
  float top;
  best(x, count, &index, &top);
  // If the maximum is infinite or NaN, it is also the log-sum-exp.
  if (!(top - top == 0)) return top;
  Floats added = {};
  int i = 0;
  for (; i + LANES <= count; i += LANES) added += exponential(load(x + i) - top);
  float whole = sum(added);
  for (; i < count; i++) whole += exponential(all(x[i] - top))[0];
  return top + logf(whole);
}

static void softmax(const float* x, int count, float* out) {
  unsigned index;
  float top;
  best(x, count, &index, &top);
  Floats added = {};
  float whole = 0;
  int i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Floats part = exponential(load(x + i) - top);
    store(out + i, part);
    added += part;
  }
  for (; i < count; i++) whole += out[i] = exponential(all(x[i] - top))[0];
  // An infinite or NaN maximum makes all results NaN.
  const float scale = top - top == 0 ? 1 / (whole + sum(added)) : __builtin_nanf("");
  for (i = 0; i < count; i++) out[i] *= scale;
}

static void mask(const float* x, const unsigned* words, int count, float* out) {
  for (int from = 0; from < count; from += 32) {
    const unsigned word = words[from / 32];
    const int to = count - from < 32 ? count - from : 32;
    for (int i = 0; i < to; i++) out[from + i] = word >> i & 1 ? x[from + i] : -__builtin_inff();
  }
}

} // namespace VARIANT
} // namespace mlx_serve
