#include "cpu/kept_memory.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>

#include "cpu/huge_pages.h"

#if defined(__linux__)
#include <errno.h>
#include <sys/mman.h>
#endif

namespace bridge {
namespace {

constexpr int64_t kUnit = int64_t{2} << 20;  // a huge page
// A block is idle after this many later blocks have been left. (Offering it to the system costs
// bookkeeping, a fifth of the time of a kernel that writes the block again.)
constexpr int64_t kIdle = 256;

struct Block {
  void* memory;
  int64_t bytes;
  int64_t left;  // number of blocks left before this one
  bool is_offered;
};

// Constant-initialised and never destroyed, because tensors are dropped until the process ends.
struct {
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
  std::atomic<int64_t> limit{0};
  std::atomic<int64_t> total{0};
  int64_t left = 0;
  int count = 0;
  Block blocks[256] = {};  // the oldest comes first
} kept;

// Locks `kept` unless another thread holds it; then the caller does without. Waiting could last for
// ever in a process that was forked while another thread held the lock.
class Hold {
 public:
  Hold() : is_held(!kept.busy.test_and_set(std::memory_order_acquire)) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    if (is_held) kept.busy.clear(std::memory_order_release);
  }
  const bool is_held;
};

void remove(int place) {
  kept.total -= kept.blocks[place].bytes;
  std::copy(kept.blocks + place + 1, kept.blocks + kept.count, kept.blocks + place);
  --kept.count;
}

// Frees the oldest blocks until `more` bytes fit.
void make_room(int64_t more) {
  constexpr int places = sizeof kept.blocks / sizeof *kept.blocks;
  while (kept.count > 0 && (kept.count == places || kept.total + more > kept.limit)) {
    free(kept.blocks[0].memory);
    remove(0);
  }
}

int64_t whole(int64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

// Lets the system take the pages of idle blocks until they are written again.
void offer_idle() {
#if defined(__linux__) && defined(MADV_FREE)
  const int saved = errno;
  for (Block& block : kept.blocks) {
    if (&block == kept.blocks + kept.count || kept.left - block.left < kIdle) break;
    if (!block.is_offered) madvise(block.memory, static_cast<size_t>(block.bytes), MADV_FREE);
    block.is_offered = true;
  }
  errno = saved;
#endif
}

}  // namespace

void keep_memory(int64_t bytes) {
  kept.limit = bytes;
  const Hold hold;
  if (hold.is_held) make_room(0);
}

int64_t kept_memory() { return kept.total; }

void* take_memory(int64_t bytes) {
  const int64_t size = whole(bytes);
  if (size > kept.limit) return nullptr;
  {
    const Hold hold;
    for (int i = hold.is_held ? kept.count - 1 : -1; i >= 0; --i) {
      if (kept.blocks[i].bytes != size) continue;
      void* const memory = kept.blocks[i].memory;
      remove(i);
      return memory;
    }
  }
  void* const memory = aligned_alloc(static_cast<size_t>(kUnit), static_cast<size_t>(size));
  if (memory != nullptr) prefer_huge_pages(memory, size);
  return memory;
}

void leave_memory(void* memory, int64_t bytes) {
  const int64_t size = whole(bytes);
  if (size <= kept.limit) {
    const Hold hold;
    if (hold.is_held) {
      make_room(size);
      kept.blocks[kept.count++] = {memory, size, kept.left++, false};
      kept.total += size;
      return offer_idle();
    }
  }
  free(memory);
}

}  // namespace bridge
