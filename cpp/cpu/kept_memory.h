// Memory of large results, which is kept when a result is dropped and reused for the next result of
// that size.
#ifndef BRIDGE_CPU_KEPT_MEMORY_H_
#define BRIDGE_CPU_KEPT_MEMORY_H_

#include <stdint.h>

#include "cpu/huge_pages.h"

namespace bridge {

// Sets the most bytes to keep, initially 0, and frees the oldest blocks beyond it.
void keep_memory(int64_t bytes);

// Returns the number of bytes kept now. Memory in use is not counted.
int64_t kept_memory();

// Returns memory for `bytes`, at least kLeastLargeBytes, to be given back by leave_memory() with
// the same number. It holds the data last written there: the system need not clear its pages, which
// costs more than a kernel. Returns nullptr if nothing of this size is to be kept, or if no memory
// is left.
void* take_memory(int64_t bytes);

// Keeps the memory for later results. When the system runs short, it may take the pages of a block
// that has been idle for long. Any thread may call this; neither function waits.
void leave_memory(void* memory, int64_t bytes);

}  // namespace bridge

#endif  // BRIDGE_CPU_KEPT_MEMORY_H_
