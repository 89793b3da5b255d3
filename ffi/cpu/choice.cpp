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

const Kernels& kernels() {
#if defined(__x86_64__)
  static const Kernels& best = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
      ? avx512::table
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2::table
                                                                        : plain::table;
  return best;
#else
  return plain::table;
#endif
}

} // namespace mlx_serve
