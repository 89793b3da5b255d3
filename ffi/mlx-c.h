// Adapts mlx-c, which was written for an older MLX, to the pinned one: mlx-c's sources are compiled with this header
// included first.
#pragma once

#ifdef __cplusplus
#include <optional>
#include <string>

#include "mlx/ops.h"

namespace mlx::core {

// The overload that mlx-c calls: MLX 0.32.4 added a parameter, the global weight scale, before `sorted_indices`.
inline array gather_qmm(
    const array& x, const array& w, const array& scales, const std::optional<array>& biases,
    std::optional<array> lhs_indices, std::optional<array> rhs_indices, bool transpose,
    std::optional<int> group_size, std::optional<int> bits, const std::string& mode, bool
    sorted_indices, StreamOrDevice s) {
  return gather_qmm(x, w, scales, biases, lhs_indices, rhs_indices, transpose, group_size, bits, mode,
                    std::nullopt, sorted_indices, s);
}

}  // namespace mlx::core
#endif
