// The memory of a launch, and what its lanes have done with each part of it.
#pragma once
#include <cstddef>
#include <cstdint>

/**
 * An asynchronous copy is under way from its beginning to its arrival: nobody may touch what it writes until then. What
 * an asynchronous product reads must have been fenced by its writer, but for what a copy of its own kind has brought.
 */
enum class Access { READ, MULTIPLY, WRITE, ATOMIC, BEGIN_COPY, END_COPY, END_BULK_COPY };

/** How often something was written. */
extern uint32_t write_count;

/** Of the lane that runs; what is no array of the launch's is not looked at. */
void touch(const void* at, size_t bytes, Access access);

/** The same where it reads shared memory of a group of its cluster. */
void touch_of(const struct Group& other, const void* at, size_t bytes);

/**
 * The same where a copy to it begins: what that has done there before must be known to be over (barrier_arrive_at). A lane of
 * it waits for the copy.
 */
void begin_copy_of(const struct Group& other, const void* at, size_t bytes);

/**
 * Whether a group may write to the device memory what another has written there, as long as it is the same: CUDA's
 * kernels do so on purpose, Metal's must not. Where it was not, after a group.
 */
extern bool may_repeat_writes;
const char* find_changed();

/** Makes arrays of the launch, and forgets them. */
void* add_array(const char* name, const void* from, size_t bytes, bool is_output);
char* add_dynamic_memory(size_t bytes);
void add_shared_array(const char* name, char* at, size_t bytes);
void forget_memory();

/** Arrays of shared memory have one address for all groups of a cluster: this one's are there from now on. */
void show_shared_memory(int group);
