// mlx-serve help
export function help(): void {
  console.log(`mlx-serve <verb>

  run [model] [prompt]  an answer in the terminal; a chat where no prompt is given
  pull <repo>           a model from the Hugging Face hub into its cache
  ls, show, rm          the models in the cache: list them, look at one, remove one
  doctor                what this machine has: device, memory, MLX, BLAS, how fast it multiplies
  version               the version of mlx-serve
  help                  this text

A model is a folder, a GGUF file, a repo of the cache (org/name), or "default".

Environment:
  MLX_SERVE_BACKEND    cpu, metal or cuda (Metal on a Mac, else the CPU)
  MLX_SERVE_MLXC       a libmlxc of your own
  MLX_SERVE_THREADS    threads of the BLAS (one a core)
  MLX_SERVE_CACHE      where libraries and models are kept (~/.cache/mlx-serve)
  MLX_SERVE_LOG        debug: a line of JSON for each step, with every request in it
  MLX_SERVE_FFI_TRACE  1: at the end, how often MLX was called and how long it took`);
}
