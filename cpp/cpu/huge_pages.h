#ifndef BRIDGE_CPU_HUGE_PAGES_H_
#define BRIDGE_CPU_HUGE_PAGES_H_

#include <stdint.h>

namespace bridge {

// The C library reuses smaller memory itself.
constexpr int64_t kLeastLargeBytes = int64_t{4} << 20;

// Asks for huge pages for a large output before its first write, because the page faults of fresh
// memory cost more than the kernel. Only whole 2 MiB pages inside [data, data + bytes) are
// affected. Does nothing below kLeastLargeBytes, outside Linux, or with BRIDGE_HUGE_PAGES=0.
void prefer_huge_pages(void* data, int64_t bytes);

// Returns true if an output should be written past the caches: it is larger than they are, and a
// look at a few of its pages finds them written before. The system clears a new page at its first
// write and leaves it in the cache.
bool is_streamed(const void* data, int64_t bytes);

}  // namespace bridge

#endif  // BRIDGE_CPU_HUGE_PAGES_H_
