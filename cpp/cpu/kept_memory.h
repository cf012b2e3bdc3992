// Memory of large results, kept when they are dropped and given to the next result of that size.
#ifndef BRIDGE_CPU_KEPT_MEMORY_H_
#define BRIDGE_CPU_KEPT_MEMORY_H_

#include <stdint.h>

#include "cpu/huge_pages.h"

namespace bridge {

// From now on at most `bytes` are kept, 0 at first; the oldest is freed when there is more.
void keep_memory(int64_t bytes);

// How much is kept now: of what was left, not of what is in use.
int64_t kept_memory();

// Memory for `bytes`, at least kLeastLargeBytes, to be given back by leave_memory() with the same
// number. It holds what was last written there: its pages need not be cleared by the system, which
// costs more than a kernel. nullptr where nothing is to be kept, or no memory is left.
void* take_memory(int64_t bytes);

// Keeps the memory. What lies idle for long while other memory is left, the system may take back
// where it runs short. From any thread; never waits, nor does take_memory().
void leave_memory(void* memory, int64_t bytes);

}  // namespace bridge

#endif  // BRIDGE_CPU_KEPT_MEMORY_H_
