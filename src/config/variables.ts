// Environment variables that are not server settings; other parts of the program read them.

export const otherVariables: Readonly<Record<string, string>> = {
  MLX_SERVE_CACHE:
    "where libraries and models are kept, and what the server stores (~/.cache/mlx-serve)",
  MLX_SERVE_MLXC: "a libmlxc of your own",
  MLX_SERVE_URL: "the server that run, ps and stop talk to",
  MLX_SERVE_FFI_TRACE: "1: at the end, how often MLX was called and how long it took",
  MLX_SERVE_DOWNLOADS: "a folder with the files that set-up would fetch",
  MLX_SERVE_KERNELS: "vnni, avx512, avx2 or plain: compute as a lesser x86 processor would",
  MLX_SERVE_FUZZ_SEED: "the seed of the tests that fuzz",
};
