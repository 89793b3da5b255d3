// Loads a CUDA library when it is first needed: building needs neither the library nor its headers.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace mlx_serve {

class Library {
 public:
  /** Throws if the library cannot be loaded. */
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
