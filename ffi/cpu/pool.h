// A thread pool that computes the pieces of one task together with the caller. One per process;
// OpenBLAS uses it too (ffi/blas.c), so that its threads and ours never compete for cores.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/** Sets the number of computing threads, which includes the caller. */
void mlx_serve_pool_set_threads(int threads);
int mlx_serve_pool_threads(void);

/**
 * Calls `piece(context, i)` for every i below `pieces`; returns when all are done. If there are at
 * most as many pieces as threads, all run concurrently, so they may wait for each other.
 */
void mlx_serve_pool_run(int pieces, void (*piece)(void* context, int i), void* context);

#ifdef __cplusplus
}

namespace mlx_serve {

/** Executes the processor's pause instruction, for spin loops. */
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
