#if defined(__x86_64__)
#include <sys/platform/x86.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
namespace vnni {
extern const Kernels table;
}
namespace amx {
extern const Kernels table;
}
#endif

namespace {

#if defined(__x86_64__)
/** Requests AMX, whose registers Linux saves only on request. Returns whether AMX can be used. */
bool may_use_amx() {
  constexpr int REQUEST = 0x1023, TILES = 18;
  return CPU_FEATURE_ACTIVE(AVX512_VBMI) && CPU_FEATURE_ACTIVE(AMX_TILE) && CPU_FEATURE_ACTIVE(AMX_INT8) &&
      syscall(SYS_arch_prctl, REQUEST, TILES) == 0;
}
#endif

/** Returns the best kernel variant for this processor. `MLX_SERVE_KERNELS` selects a lesser one, for tests. */
const Kernels& choose() {
#if defined(__x86_64__)
  const char* named = std::getenv("MLX_SERVE_KERNELS");
  const auto wants = [&](const char* name) { return !named || std::strcmp(named, name) == 0; };
  // Uses glibc's CPU_FEATURE_ACTIVE, because __builtin_cpu_supports needs a runtime library that zig lacks.
  const bool has512 = CPU_FEATURE_ACTIVE(AVX512F) && CPU_FEATURE_ACTIVE(AVX512DQ) &&
      CPU_FEATURE_ACTIVE(AVX512BW) && CPU_FEATURE_ACTIVE(AVX512VL);
  const bool has_vnni = has512 && CPU_FEATURE_ACTIVE(AVX512_VNNI);
  if (has_vnni && wants("amx") && may_use_amx()) return amx::table;
  if (has_vnni && wants("vnni")) return vnni::table;
  if (has512 && wants("avx512")) return avx512::table;
  if (CPU_FEATURE_ACTIVE(AVX2) && CPU_FEATURE_ACTIVE(FMA) && wants("avx2")) {
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
