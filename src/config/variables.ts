// Environment variables other than settings.

export const otherVariables: Readonly<Record<string, string>> = {
  MLX_SERVE_CACHE: "the folder for libraries, models and stored data (~/.cache/mlx-serve)",
  MLX_SERVE_MLXC: "the path of another libmlxc",
  MLX_SERVE_URL: "the server that run, ps and stop talk to",
  MLX_SERVE_FFI_TRACE: "1: at exit, print the number and duration of calls to MLX",
  MLX_SERVE_DOWNLOADS: "a folder with the files that set-up would otherwise download",
  MLX_SERVE_KERNELS: "vnni, avx512, avx2 or plain: use no newer x86 instructions",
  MLX_SERVE_FUZZ_SEED: "the seed of fuzz tests",
};
