// Spinning, for waits of a few microseconds.
#ifndef BRIDGE_CPU_SPIN_H_
#define BRIDGE_CPU_SPIN_H_

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bridge {

// The time that a caller without tasks spins for its last worker before it sleeps.
constexpr auto kCallerSpin = std::chrono::microseconds(20);

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

template <class Condition>
bool spin_until(std::chrono::microseconds limit, const Condition& condition) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + limit;
  do {
    for (int i = 0; i < 16; ++i) {
      if (condition()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return condition();
}

}  // namespace bridge

#endif  // BRIDGE_CPU_SPIN_H_
