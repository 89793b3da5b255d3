// The lanes of a group, as the emulator's own files see them.
#pragma once
#include <csetjmp>
#include <cstdint>
#include <map>
#include <vector>

/** Ends the launch. Its message begins with the kernel's name. */
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

/** A rendezvous: the last one to arrive does something for all, then they go on. */
struct Meeting {
  int missing = 0;
  long number = 0;
  const char* operation = nullptr; // of those that wait
};

/** How often barriers have ordered each kind of memory. */
struct Epochs {
  uint32_t device = 1, shared = 1;
  void advance(int order);
};

/** Of a cluster. */
constexpr int MOST_LANES = 2048, MOST_GROUPS = 8;

/** A copy to shared memory that may arrive at any time until it is waited for. */
struct Copy {
  unsigned to;
  const void* from;
  int bytes, written; // zeros too
  int group; // how many were committed before
  char taken[16]; // what was there when it began
};

/** A copy that a barrier of shared memory counts: it may arrive at any time until that is waited for. */
struct BulkCopy {
  unsigned to;
  const char* from;
  const struct Group* of; // whose shared memory that is, if it is
  std::vector<char> taken; // what was there when it began
};

/** 16 bytes of shared memory that are copied to device memory, if they are in the matrix, by the time that they are waited for. */
struct StoredPack {
  unsigned from;
  char* to;
  char taken[16]; // what was there when it began
};
using Store = std::vector<StoredPack>;

/** Its meetings are those who look whether it is complete. */
struct CountingBarrier : Meeting {
  int count = 0, left = 0; // arrivals
  int expected = 0, asked = 0; // bytes
  uint32_t arrived[MOST_GROUPS] = {}; // in which epoch of another group its lanes have
  long completed = 0;
  std::vector<BulkCopy> copies;
};

/** A product of a warpgroup that may be computed at any time until it is waited for. */
struct Product {
  uint64_t a = 0, b = 0; // descriptors
  const unsigned* registers = nullptr; // instead of `a`
  bool is_transposed = false; // `b`
  float* sum = nullptr;
  int sums = 0;
  bool adds = false;
  int group = 0;
  void (*compute)(float* made, const Product&) = nullptr;
  unsigned taken[4] = {}; // what was in the registers when it began
  float rows[2][16] = {}; // and what a lane's rows were by all lanes' registers
  float begun[128] = {}; // and what it was
};

struct Warp : Meeting {
  Epochs epochs;
};

extern Warp warps[MOST_LANES / 32];

struct Group : Meeting {
  unsigned x, y, z;
  /** Of a launch, which has all its groups one after another, or clusters of them. The first ones of this group are its
   *  own. */
  Epochs epochs, first;
  /** By the numbers that instructions address it with. */
  char* dynamic_memory;
  bool has_ended; // a lane of it
  uint32_t known[MOST_GROUPS]; // what others of its cluster did before these epochs of theirs is over, as this one knows
  long read_until; // by others of its cluster: the number of the meeting behind which they have
  std::map<unsigned, CountingBarrier> barriers; // by their addresses
};

struct Lane {
  int index; // in its cluster
  Group* group;
  bool is_started, is_done; // the fibre, and the kernel
  bool has_waited; // for the launch before
  long arrived; // the number of the cluster's meeting, or -1
  long met; // of these: those that it has waited for
  jmp_buf context;
  const Meeting* waits_for;
  long waits_until; // its number
  std::vector<Copy> copies;
  std::vector<Product> products;
  std::vector<Store> stores;
  int copy_groups, product_groups;
  uint32_t fenced_writes; // to shared memory: those that products may read
  bool has_fenced; // registers, since products were waited for
  int in_warp() const {
    return index % 32;
  }
  Warp& warp() const {
    return warps[index / 32];
  }
};

/** The one that runs, if any, and all. */
extern Lane* me;
extern std::vector<Lane> lanes;
/** Those of the cluster that runs; without clusters there is one. */
extern Group groups[MOST_GROUPS];
extern int group_count;
/** The lane reads the other's shared memory, which has to be there until then. */
void keep_until_read(Group& other);
/** What was written before the last barrier of the cluster. */
extern uint32_t cluster_writes;
extern unsigned dynamic_bytes;

void wait_for(const Meeting& meeting, long number);

/** What lanes of the group did before is ordered before what they do next. */
void order_group(Group& group);

template <typename Last>
void meet(Meeting& meeting, int size, const char* operation, Last last) {
  const long number = meeting.number;
  if (meeting.missing == 0) {
    meeting.missing = size;
    meeting.operation = operation;
  }
  if (meeting.operation != operation) {
    fault("lane %d is at %s while others wait at %s", me->index, operation, meeting.operation);
  }
  meeting.missing -= 1;
  if (meeting.missing == 0) {
    last();
    meeting.number += 1;
  } else {
    wait_for(meeting, number);
  }
}

template <typename Last>
void in_warp(const char* operation, Last last) {
  meet(me->warp(), 32, operation, last);
}

/**
 * A value of each lane of a warp, visible to all of them at their next meeting. There are two of each, so that one that
 * goes ahead to the meeting after it leaves those of others alone.
 */
template <typename T>
struct Exchange {
  T of[MOST_LANES / 32][2][32];
  T* begin() {
    return of[me->index / 32][me->warp().number % 2];
  }
};
