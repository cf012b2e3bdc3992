#include "cpu/huge_pages.h"

#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace bridge {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

bool is_wanted() {
  static const bool wanted = [] {
    const char* value = getenv("BRIDGE_HUGE_PAGES");
    return value == nullptr || strcmp(value, "0") != 0;
  }();
  return wanted;
}

}  // namespace

void prefer_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (bytes < kLeastLargeBytes || !is_wanted()) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t last = (begin + static_cast<uintptr_t>(bytes)) & ~(kHugePage - 1);
  if (last <= first) return;
  // This is a hint: a kernel without huge pages rejects it, without harm.
  const int saved = errno;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  errno = saved;
#else
  (void)data, (void)bytes, (void)is_wanted, (void)kHugePage;
#endif
}

bool is_streamed(const void* data, int64_t bytes) {
  constexpr int64_t kLeastBytes = int64_t{32} << 20;  // no cache holds so much until it is read
  if (bytes < kLeastBytes) return false;
#if defined(__linux__)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  const int saved = errno;
  bool present = true;
  for (int i = 1; i < 8 && present; i += 2) {
    const uintptr_t address = begin + static_cast<uintptr_t>(bytes) / 8 * static_cast<uintptr_t>(i);
    unsigned char resident = 0;
    present = mincore(reinterpret_cast<void*>(address & ~(page - 1)), page, &resident) == 0 &&
              (resident & 1) != 0;
  }
  errno = saved;
  return present;
#else
  (void)data, (void)bytes;
  return false;
#endif
}

}  // namespace bridge
