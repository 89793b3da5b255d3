#include "pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace {

/** Spins before an idle thread sleeps: a step's tasks are microseconds apart, and a wake-up takes longer. */
constexpr int SPINS = 4000;

class Pool {
 public:
  void set_threads(int threads) {
    const std::lock_guard<std::mutex> one(entry_);
    const int workers = threads - 1;
    // Never joined: the threads live as long as the process.
    for (; started_ < workers; started_++) new std::thread(&Pool::work, this, started_);
    active_ = workers;
  }

  int threads() const {
    return active_ + 1;
  }

  void run(int pieces, void (*piece)(void*, int), void* context) {
    if (pieces <= 1 || active_ == 0) {
      for (int i = 0; i < pieces; i++) piece(context, i);
      return;
    }
    const std::lock_guard<std::mutex> one(entry_);
    piece_ = piece;
    context_ = context;
    done_ = 0;
    // The upper half is the task's number and the lower half the count of pieces left: a thread that still works on
    // the previous task fails its compare-and-swap, and so cannot take a piece of this one.
    task_ += 1;
    left_.store(task_ << 32 | static_cast<uint32_t>(pieces));
    if (sleeping_.load() > 0) {
      const std::lock_guard<std::mutex> lock(sleep_);
      awake_.notify_all();
    }
    while (take()) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) < pieces; spins++) {
      if (spins < SPINS) mlx_serve::pause_processor();
      else std::this_thread::yield();
    }
  }

 private:
  /** Computes a piece if one is left. `piece_` stays valid, because `run` waits until the piece is done. */
  bool take() {
    uint64_t left = left_.load();
    do {
      if ((left & UINT32_MAX) == 0) return false;
    } while (!left_.compare_exchange_weak(left, left - 1));
    piece_(context_, static_cast<int>((left & UINT32_MAX) - 1));
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void work(int index) {
    const auto wanted = [&] { return (left_.load() & UINT32_MAX) > 0 && index < active_; };
    for (int idle = 0;; idle++) {
      if (wanted() && take()) {
        idle = 0;
      } else if (idle < SPINS) {
        mlx_serve::pause_processor();
      } else {
        std::unique_lock<std::mutex> lock(sleep_);
        sleeping_ += 1;
        awake_.wait(lock, wanted);
        sleeping_ -= 1;
        idle = 0;
      }
    }
  }

  std::mutex entry_;
  std::atomic<int> active_{0};
  int started_ = 0;

  void (*piece_)(void*, int) = nullptr;
  void* context_ = nullptr;
  uint64_t task_ = 0;
  std::atomic<uint64_t> left_{0};
  std::atomic<int> done_{0};

  std::mutex sleep_;
  std::condition_variable awake_;
  std::atomic<int> sleeping_{0};
};

/** Returns the pool, which is never destroyed, because its threads keep using it. */
Pool& pool() {
  static Pool* const only = new Pool;
  return *only;
}

} // namespace

void mlx_serve_pool_set_threads(int threads) {
  pool().set_threads(threads);
}

int mlx_serve_pool_threads(void) {
  return pool().threads();
}

void mlx_serve_pool_run(int pieces, void (*piece)(void*, int), void* context) {
  pool().run(pieces, piece, context);
}
