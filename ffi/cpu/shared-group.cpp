// An MLX distributed group for ranks on one machine, in shared memory. MLX's own ring polls with a thread per socket
// and wakes several threads per sum; if the ranks use all cores, that takes longer than the layers between two sums.
//
// An all-reduce goes piece by piece through double buffers: each rank copies its piece to its buffer and increments
// its counter; when all counters have advanced, everybody reads. A buffer is overwritten two rounds later, when all
// ranks have passed the barrier in between. A rank that never arrives blocks the others: the server ends such a
// group.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "../calls.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/private/mlx.h"
#include "mlx/distributed/distributed_impl.h"
#include "mlx/dtype_utils.h"
#include "ops.h"
#include "pool.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace mx = mlx::core;

namespace mlx_serve {
namespace {

constexpr size_t PIECE = 256 * 1024;
constexpr uint32_t BUFFERS = 2;
/** Maximum pieces in flight: those that a rank has sent and its neighbour has not received yet. */
constexpr uint32_t UNDER_WAY = 16;
/**
 * Waits are usually shorter than sleeping and being woken, which takes milliseconds if the processor sleeps too, as
 * in a virtual machine. So a rank first spins SPINS times, then yields its core YIELDS times, and only then sleeps.
 */
constexpr int SPINS = 2000;
constexpr int YIELDS = 10'000;

/** A counter in shared memory that only grows; other processes can wait for a value. */
struct alignas(64) Counter {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleepers;

  void advance() {
    count.fetch_add(1);
    if (sleepers.load() > 0) wake();
  }

  void await(uint32_t wanted) {
    for (int spins = 0; spins < SPINS + YIELDS; spins++) {
      if (has(count.load(std::memory_order_acquire), wanted)) return;
      if (spins < SPINS) pause_processor();
      else sched_yield();
    }
    sleepers.fetch_add(1);
    for (uint32_t seen = count.load(); !has(seen, wanted); seen = count.load()) sleep(seen);
    sleepers.fetch_sub(1);
  }

 private:
  static bool has(uint32_t seen, uint32_t wanted) {
    return static_cast<int32_t>(seen - wanted) >= 0;
  }

#if defined(__linux__)
  void sleep(uint32_t seen) {
    syscall(SYS_futex, &count, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }

  void wake() {
    syscall(SYS_futex, &count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
#else
  void sleep(uint32_t) {
    usleep(100);
  }

  void wake() {}
#endif
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);

/** A ring buffer from a rank to one of its neighbours. */
struct Channel {
  Counter sent, received;
  char pieces[UNDER_WAY][PIECE];
};

struct Rank {
  Counter arrived;
  Channel right, left;
  char pieces[BUFFERS][PIECE];
};

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + strerror(errno));
}

/** Maps the memory of all ranks, which is zero-filled if this process is the first to open the file. */
Rank* map(const char* path, int size) {
  const size_t bytes = sizeof(Rank) * size;
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) fail(path);
  const bool is_long = ftruncate(file, static_cast<off_t>(bytes)) == 0;
  void* memory = is_long ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const int reason = errno;
  close(file);
  errno = reason;
  if (memory == MAP_FAILED) fail(path);
  return static_cast<Rank*>(memory);
}

class SharedGroup : public mx::distributed::detail::GroupImpl {
 public:
  /** Returns when all ranks have mapped the memory. */
  SharedGroup(const char* path, int rank, int size)
      : ranks_(map(path, size)), rank_(rank), size_(size) {
    barrier();
    // Removes the name, since all ranks have mapped the file; the memory lives as long as the processes.
    if (rank == 0) unlink(path);
  }

  ~SharedGroup() override {
    munmap(ranks_, sizeof(Rank) * size_);
  }

  mx::Stream communication_stream(mx::StreamOrDevice s) override {
    return mx::to_stream(s, mx::Device::cpu);
  }

  int rank() override {
    return rank_;
  }

  int size() override {
    return size_;
  }

  void all_sum(const mx::array& input, mx::array& output, mx::Stream stream) override {
    mx::dispatch_all_types(output.dtype(), [&](auto tag) {
      using T = MLX_GET_TYPE(tag);
      dispatch(input, output, stream, [this](const char* from, char* to, size_t bytes) {
        exchange(from, bytes, [&](size_t at, size_t count) {
          add_up(reinterpret_cast<T*>(to + at), count / sizeof(T));
        });
      });
    });
  }

  void all_gather(const mx::array& input, mx::array& output, mx::Stream stream) override {
    dispatch(input, output, stream, [this](const char* from, char* to, size_t bytes) {
      exchange(from, bytes, [&](size_t at, size_t count) {
        for (int each = 0; each < size_; each++) memcpy(to + each * bytes + at, piece_of(each), count);
      });
    });
  }

  void send(const mx::array& input, int to, mx::Stream stream) override {
    Channel& channel = channel_of(rank_, to);
    auto& encoder = mx::cpu::get_command_encoder(stream);
    encoder.set_input_array(input);
    encoder.dispatch([&channel, from = input.data<char>(), bytes = input.nbytes()] {
      each_piece(bytes, [&](size_t at, size_t count) {
        const uint32_t number = channel.sent.count.load();
        channel.received.await(number + 1 - UNDER_WAY);
        memcpy(channel.pieces[number % UNDER_WAY], from + at, count);
        channel.sent.advance();
      });
    });
  }

  void recv(mx::array& output, int from, mx::Stream stream) override {
    Channel& channel = channel_of(from, rank_);
    auto& encoder = mx::cpu::get_command_encoder(stream);
    encoder.set_output_array(output);
    encoder.dispatch([&channel, to = output.data<char>(), bytes = output.nbytes()] {
      each_piece(bytes, [&](size_t at, size_t count) {
        const uint32_t number = channel.received.count.load();
        channel.sent.await(number + 1);
        memcpy(to + at, channel.pieces[number % UNDER_WAY], count);
        channel.received.advance();
      });
    });
  }

  void all_max(const mx::array&, mx::array&, mx::Stream) override {
    refuse();
  }

  void all_min(const mx::array&, mx::array&, mx::Stream) override {
    refuse();
  }

  void sum_scatter(const mx::array&, mx::array&, mx::Stream) override {
    refuse();
  }

  std::shared_ptr<GroupImpl> split(int, int) override {
    refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    throw std::runtime_error("ranks that share memory have no such collective");
  }

  template <class Work>
  static void dispatch(
      const mx::array& input, mx::array& output, mx::Stream stream, const Work& work) {
    auto& encoder = mx::cpu::get_command_encoder(stream);
    encoder.set_input_array(input);
    encoder.set_output_array(output);
    encoder.dispatch([work, from = input.data<char>(), to = output.data<char>(),
                      bytes = input.nbytes()] { work(from, to, bytes); });
  }

  template <class Each>
  static void each_piece(size_t bytes, const Each& each) {
    for (size_t at = 0; at < bytes; at += PIECE) each(at, std::min(PIECE, bytes - at));
  }

  /** Publishes this rank's data in pieces; calls `take` for each piece when all ranks have published theirs. */
  template <class Take>
  void exchange(const char* from, size_t bytes, const Take& take) {
    each_piece(bytes, [&](size_t at, size_t count) {
      round_ += 1;
      memcpy(piece_of(rank_), from + at, count);
      barrier();
      take(at, count);
    });
  }

  void barrier() {
    ranks_[rank_].arrived.advance();
    const uint32_t own = ranks_[rank_].arrived.count.load();
    for (int each = 0; each < size_; each++) ranks_[each].arrived.await(own);
  }

  char* piece_of(int rank) const {
    return ranks_[rank].pieces[round_ % BUFFERS];
  }

  /** Sums the ranks' data in the order of the ranks, so that all ranks get bit-identical results. */
  template <class T>
  void add_up(T* to, size_t count) const {
    memcpy(to, piece_of(0), count * sizeof(T));
    for (int each = 1; each < size_; each++) {
      const T* part = reinterpret_cast<const T*>(piece_of(each));
      for (size_t i = 0; i < count; i++) to[i] = to[i] + part[i];
    }
  }

  Channel& channel_of(int from, int to) const {
    if (to == (from + 1) % size_) return ranks_[from].right;
    if (from == (to + 1) % size_) return ranks_[from].left;
    throw std::runtime_error(
        "ranks " + std::to_string(from) + " and " + std::to_string(to) + " are no neighbours");
  }

  Rank* const ranks_;
  const int rank_, size_;
  uint32_t round_ = 0;
};

} // namespace
} // namespace mlx_serve

using namespace mlx_serve;

extern "C" int mlx_serve_shared_group(
    mlx_distributed_group* res, const char* path, int rank, int size) {
  return attempt([&] {
    require(size > 0 && rank >= 0 && rank < size, "there is no such rank");
    auto group = std::make_shared<SharedGroup>(path, rank, size);
    mlx_distributed_group_set_(*res, mx::distributed::Group(std::move(group)));
  });
}
