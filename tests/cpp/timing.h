// Times a kernel beside a plain copy, for programs that are run by hand.
#ifndef BRIDGE_TESTS_TIMING_H_
#define BRIDGE_TESTS_TIMING_H_

#include <bridge/bridge.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <functional>

namespace bridge::timing {

inline double budget = 0.15;

// The shortest of many runs, in seconds.
inline double best_time(const std::function<void()>& prepare, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9, total = 0;
  for (int i = 0; i < 3 || total < budget; ++i) {
    prepare();
    const auto start = Clock::now();
    run();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

// Memory straight from the system, so that new memory has no pages yet.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes + (size_t{2} << 20)) { map(); }
  ~Pages() { munmap(data_, bytes_); }
  void renew() {
    munmap(data_, bytes_);
    map();
  }
  // An offset of 64 bytes into the mapping, as from an allocator.
  void* data() const { return static_cast<char*>(data_) + 64; }

 private:
  void map() {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) abort();
  }
  size_t bytes_;
  void* data_ = nullptr;
};

// Fills with numbers from -span/2 to span/2; for float16, with magnitudes from 1/4 to 4.
inline void fill(void* data, int32_t dtype, int64_t count, float span = 8) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>((i * 7919) % 1009) * (span / 1000) - span / 2;
    if (dtype == BRIDGE_FLOAT32) static_cast<float*>(data)[i] = value;
    if (dtype == BRIDGE_FLOAT64) static_cast<double*>(data)[i] = value;
    if (dtype == BRIDGE_BFLOAT16) {
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(bits >> 16);
    }
    if (dtype == BRIDGE_FLOAT16)
      static_cast<uint16_t*>(data)[i] =
          static_cast<uint16_t>(0x3400 + (i * 7919) % 0x1000 + (i & 1) * 0x8000);
  }
}

inline void time_copy(int64_t bytes, const bridge_executor& executor) {
  Pages from(static_cast<size_t>(bytes)), to(static_cast<size_t>(bytes));
  memset(from.data(), 1, static_cast<size_t>(bytes));
  memset(to.data(), 1, static_cast<size_t>(bytes));
  struct Copy {
    char *from, *to;
    int64_t bytes;
  } copy{static_cast<char*>(from.data()), static_cast<char*>(to.data()), bytes / executor.threads};
  const double seconds = best_time([] {},
                                   [&] {
                                     executor.run(
                                         executor.context, executor.threads,
                                         [](void* context, int64_t i) {
                                           const Copy& c = *static_cast<Copy*>(context);
                                           memcpy(c.to + i * c.bytes, c.from + i * c.bytes,
                                                  static_cast<size_t>(c.bytes));
                                         },
                                         &copy);
                                   });
  printf("%-26s %lld MiB: %9.1f us %7.1f GB/s\n", "memcpy", static_cast<long long>(bytes >> 20),
         seconds * 1e6, 2.0 * static_cast<double>(bytes) / seconds * 1e-9);
}

}  // namespace bridge::timing

#endif  // BRIDGE_TESTS_TIMING_H_
