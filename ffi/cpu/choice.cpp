#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace mlx_serve {

namespace plain {
extern const Kernels table;
}

#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

namespace {

/** `MLX_SERVE_KERNELS` names one of less, for tests. */
const Kernels& choose() {
#if defined(__x86_64__)
  const char* named = std::getenv("MLX_SERVE_KERNELS");
  const auto wants = [&](const char* name) { return !named || std::strcmp(named, name) == 0; };
  const bool has512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (has512 && wants("avx512")) return avx512::table;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && wants("avx2")) {
    return avx2::table;
  }
#endif
  return plain::table;
}

} // namespace

const Kernels& kernels() {
  static const Kernels& best = choose();
  return best;
}

} // namespace mlx_serve
