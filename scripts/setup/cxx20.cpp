// Compiles where there is C++20, its library included (compiler.ts).
#include <concepts>
#include <span>

template <std::integral T>
T first(std::span<const T> values) {
  return values.front();
}

template int first(std::span<const int>);
