// MLX caches compiled kernels on disk, but not custom ones: it would compile ours at every start, several seconds
// each, mostly for headers that they do not use. It does look up custom kernels in the cache, though, so they are
// compiled here, without those headers, before MLX needs them, and stored under the names that MLX looks for.
#include "compiled.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "../calls.h"
#include "library.h"
#include "mlx/c/private/mlx.h"
#include "mlx/device.h"
#include "mlx/fast_primitives.h"

namespace fs = std::filesystem;
namespace mx = mlx::core;

namespace mlx_serve {
namespace {

using Program = struct _nvrtcProgram*;

/** The functions of NVRTC that we call; MLX uses the same compiler. */
struct Compiler {
  const char* (*nvrtcGetErrorString)(int error);
  int (*nvrtcCreateProgram)(
      Program* program, const char* source, const char* name, int headers,
      const char* const* texts, const char* const* names);
  int (*nvrtcDestroyProgram)(Program* program);
  int (*nvrtcAddNameExpression)(Program program, const char* expression);
  int (*nvrtcCompileProgram)(Program program, int count, const char* const* options);
  int (*nvrtcGetProgramLogSize)(Program program, size_t* size);
  int (*nvrtcGetProgramLog)(Program program, char* log);
  int (*nvrtcGetLoweredName)(Program program, const char* expression, const char** name);
  int (*nvrtcGetCUBINSize)(Program program, size_t* size);
  int (*nvrtcGetCUBIN)(Program program, char* code);
};

const Compiler& compiler() {
  static const Compiler found = [] {
    const Library library("libnvrtc.so.13");
    Compiler c{};
    library.find("nvrtcGetErrorString", c.nvrtcGetErrorString);
    library.find("nvrtcCreateProgram", c.nvrtcCreateProgram);
    library.find("nvrtcDestroyProgram", c.nvrtcDestroyProgram);
    library.find("nvrtcAddNameExpression", c.nvrtcAddNameExpression);
    library.find("nvrtcCompileProgram", c.nvrtcCompileProgram);
    library.find("nvrtcGetProgramLogSize", c.nvrtcGetProgramLogSize);
    library.find("nvrtcGetProgramLog", c.nvrtcGetProgramLog);
    library.find("nvrtcGetLoweredName", c.nvrtcGetLoweredName);
    library.find("nvrtcGetCUBINSize", c.nvrtcGetCUBINSize);
    library.find("nvrtcGetCUBIN", c.nvrtcGetCUBIN);
    return c;
  }();
  return found;
}

void check_compiler(int error, const char* what) {
  if (error == 0) return;
  throw std::runtime_error(std::string(what) + ": " + compiler().nvrtcGetErrorString(error));
}

// MLX starts every kernel with these two includes. Our stand-ins contain only what our kernels need of them.
constexpr const char* HEADER_NAMES[] = {"mlx/backend/cuda/device/utils.cuh", "cooperative_groups.h"};
constexpr const char* HEADER_TEXTS[] = {
    "#include <cuda_bf16.h>\n"
    "#include <cuda_fp16.h>\n"
    "using int32_t = int;\n"
    "using uint32_t = unsigned;\n",
    "namespace cooperative_groups {}\n"};

/** Returns the include paths that MLX passes: its own, and CUDA's. */
std::vector<std::string> include_options() {
  Dl_info self{};
  dladdr(reinterpret_cast<void*>(&mlx_serve_compile_kernel), &self);
  const fs::path own = fs::path(self.dli_fname).parent_path().parent_path() / "include";
  const char* home = std::getenv("CUDA_HOME");
  if (!home) home = std::getenv("CUDA_PATH");
  const fs::path cuda = fs::path(home ? home : "/usr/local/cuda") / "include";
  std::vector<std::string> options;
  for (const auto& path : {own, own / "cccl", cuda}) options.push_back("--include-path=" + path.string());
  return options;
}

/** Returns the architecture option that MLX passes: from 9.0 on with architecture-specific features (sm_90a). */
std::string architecture_option() {
  const auto& info = mx::device_info(mx::Device::gpu);
  const auto name = std::get<std::string>(info.at("architecture")); // sm_90
  return "--gpu-architecture=" + name + (std::stoi(name.substr(3)) >= 90 ? "a" : "");
}

struct Code {
  std::string binary;
  /** Mangled name of the kernel. */
  std::string name;
};

Code compile(const std::string& source, const std::string& kernel, std::vector<std::string> options) {
  const Compiler& c = compiler();
  Program made = nullptr;
  check_compiler(
      c.nvrtcCreateProgram(
          &made, source.c_str(), nullptr, std::size(HEADER_TEXTS), HEADER_TEXTS, HEADER_NAMES),
      "nvrtcCreateProgram");
  const auto destroy = [&c](Program program) { c.nvrtcDestroyProgram(&program); };
  const std::unique_ptr<_nvrtcProgram, decltype(destroy)> program(made, destroy);
  check_compiler(c.nvrtcAddNameExpression(made, kernel.c_str()), "nvrtcAddNameExpression");
  std::vector<const char*> texts;
  for (const auto& option : options) texts.push_back(option.c_str());
  if (const int error = c.nvrtcCompileProgram(made, texts.size(), texts.data())) {
    size_t size = 0;
    c.nvrtcGetProgramLogSize(made, &size);
    std::string log(size, '\0');
    c.nvrtcGetProgramLog(made, log.data());
    check_compiler(error, log.c_str());
  }
  const char* name = nullptr;
  check_compiler(c.nvrtcGetLoweredName(made, kernel.c_str(), &name), "nvrtcGetLoweredName");
  size_t size = 0;
  check_compiler(c.nvrtcGetCUBINSize(made, &size), "nvrtcGetCUBINSize");
  Code code{std::string(size, '\0'), name};
  check_compiler(c.nvrtcGetCUBIN(made, code.binary.data()), "nvrtcGetCUBIN");
  return code;
}

/** Writes atomically, because other processes read the cache too. */
void write(const fs::path& path, const std::string& text) {
  const fs::path part = path.string() + "." + std::to_string(getpid());
  std::ofstream file(part, std::ios::binary);
  file << text;
  file.close();
  require(file.good(), "a compiled kernel could not be written");
  fs::rename(part, path);
}

void compile_kernel(const mx::array& made) {
  const bool is_kernel = made.has_primitive() && std::string_view(made.primitive().name()) == "CustomKernel";
  require(is_kernel, "no kernel is to make the array");
  const auto state = static_cast<const mx::fast::CustomKernel&>(made.primitive()).state();
  const auto& [name, source] = std::tie(std::get<0>(state), std::get<1>(state));
  const char* folder = std::getenv("MLX_PTX_CACHE_DIR");
  require(folder != nullptr, "MLX_PTX_CACHE_DIR is not set");
  // Names the cache files like MLX: the kernel's name and a hash of its source.
  char hash[17];
  std::snprintf(hash, sizeof(hash), "%zx", std::hash<std::string>{}(source));
  const fs::path path = fs::path(folder) / (name + "_" + hash);
  const fs::path binary = path.string() + ".ptx";
  if (fs::exists(binary)) return;
  auto options = include_options();
  options.push_back(architecture_option());
  options.push_back("--device-as-default-execution-space");
  const std::string kernel = "mlx::core::cu::" + name;
  const Code code = compile(source, kernel, std::move(options));
  fs::create_directories(folder);
  write(path.string() + ".txt", kernel + "\t" + code.name + "\n");
  write(binary, code.binary);
}

} // namespace
} // namespace mlx_serve

extern "C" int mlx_serve_compile_kernel(const mlx_array made) {
  return mlx_serve::attempt([&] { mlx_serve::compile_kernel(mlx_array_get_(made)); });
}
