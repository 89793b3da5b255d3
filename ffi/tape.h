// Lists the unevaluated operations that arrays depend on, in topological order.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "calls.h"
#include "mlx/array.h"

namespace mlx_serve {

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;

/** `computed` are the arrays to compute, in order; `taken` are evaluated inputs (weights, KV pools). */
struct Tape {
  Arrays computed, taken;
};

inline Tape tape_of(const Arrays& outputs) {
  Tape tape;
  std::unordered_set<std::uintptr_t> seen;
  std::vector<std::pair<mx::array, size_t>> path;
  const auto visit = [&](const mx::array& x) {
    if (!seen.insert(x.id()).second) return;
    if (x.status() != mx::array::Status::unscheduled) {
      tape.taken.push_back(x);
      return;
    }
    require(x.has_primitive(), "an array has nothing that computes it");
    for (const auto& sibling : x.siblings()) seen.insert(sibling.id());
    path.emplace_back(x, 0);
  };
  for (const auto& output : outputs) {
    visit(output);
    while (!path.empty()) {
      auto& [x, next] = path.back();
      if (next < x.inputs().size()) {
        const mx::array input = x.inputs()[next++];
        visit(input);
      } else {
        tape.computed.push_back(x);
        path.pop_back();
      }
    }
  }
  return tape;
}

} // namespace mlx_serve
