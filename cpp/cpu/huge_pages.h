#ifndef BRIDGE_CPU_HUGE_PAGES_H_
#define BRIDGE_CPU_HUGE_PAGES_H_

#include <stdint.h>

namespace bridge {

// Below this the C library keeps memory itself.
constexpr int64_t kLeastLargeBytes = int64_t{4} << 20;

// Asks for huge pages in a large output before it is first written: the page faults of fresh memory
// otherwise cost more than the kernel. Only whole 2 MiB pages inside [data, data + bytes) are
// touched. Nothing happens below kLeastLargeBytes, outside Linux, or with BRIDGE_HUGE_PAGES=0.
void prefer_huge_pages(void* data, int64_t bytes);

// Whether so large an output is to be written past the caches: into memory that has been written
// before, by a look at a few of its pages. The system clears a new page when it is first written,
// and leaves it in the cache.
bool is_streamed(const void* data, int64_t bytes);

}  // namespace bridge

#endif  // BRIDGE_CPU_HUGE_PAGES_H_
