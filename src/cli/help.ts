// mlx-serve help
export function help(): void {
  console.log(`mlx-serve <verb>

  doctor     what this machine has: device, memory, MLX, BLAS, and how fast it multiplies
  version    the version of mlx-serve
  help       this text

Environment:
  MLX_SERVE_BACKEND    cpu, metal or cuda (Metal on a Mac, else the CPU)
  MLX_SERVE_MLXC       a libmlxc of your own
  MLX_SERVE_THREADS    threads of the BLAS (one a core)
  MLX_SERVE_CACHE      where libraries and models are kept (~/.cache/mlx-serve)
  MLX_SERVE_FFI_TRACE  1: at the end, how often MLX was called and how long it took`);
}
