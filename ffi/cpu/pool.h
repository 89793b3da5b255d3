// Threads that compute pieces of one task, and the caller with them. One pool a process: OpenBLAS uses
// it too (ffi/blas.c), so that its threads and ours never wait for the same cores.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/** How many threads compute, the caller among them. */
void mlx_serve_pool_set_threads(int threads);
int mlx_serve_pool_threads(void);

/**
 * Calls `piece(context, i)` for every i below `pieces`; returns when all are done. As many pieces as there
 * are threads run at the same time: they may wait for each other.
 */
void mlx_serve_pool_run(int pieces, void (*piece)(void* context, int i), void* context);

#ifdef __cplusplus
}

namespace mlx_serve {

/** Between two looks at what another thread is about to write. */
inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Piece>
void parallel(int pieces, const Piece& piece) {
  mlx_serve_pool_run(
      pieces,
      [](void* context, int i) { (*static_cast<const Piece*>(context))(i); },
      const_cast<Piece*>(&piece));
}

} // namespace mlx_serve
#endif
