// A library of CUDA's, opened when it is first asked for: neither it nor its headers need be there to build this.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace mlx_serve {

class Library {
 public:
  /** Throws where there is none. */
  explicit Library(const char* name) : name_(name), handle_(dlopen(name, RTLD_NOW)) {
    if (!handle_) throw std::runtime_error("CUDA's " + name_ + " is not there");
  }

  template <class F>
  void find(const char* name, F& function) const {
    function = reinterpret_cast<F>(dlsym(handle_, name));
    if (!function) throw std::runtime_error("CUDA's " + name_ + " has no " + name);
  }

 private:
  std::string name_;
  void* handle_;
};

} // namespace mlx_serve
