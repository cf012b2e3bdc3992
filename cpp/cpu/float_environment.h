// IEEE arithmetic for a scope: round to nearest, subnormals preserved, exceptions masked,
// regardless of the calling thread's settings (XLA runs its handlers with flush-to-zero).
#ifndef BRIDGE_CPU_FLOAT_ENVIRONMENT_H_
#define BRIDGE_CPU_FLOAT_ENVIRONMENT_H_

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace bridge {

#if defined(__x86_64__)

class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(_mm_getcsr()) {
    if (saved_ != kIeee) _mm_setcsr(kIeee);
  }
  // Restores the sticky exception flags too, because they belong to the caller.
  ~FloatEnvironment() { _mm_setcsr(saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  static constexpr uint32_t kIeee = 0x1f80;
  uint32_t saved_;
};

#elif defined(__aarch64__)

class FloatEnvironment {
 public:
  FloatEnvironment() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    const uint64_t ieee = 0;
    __asm__ volatile("msr fpcr, %0" ::"r"(ieee));
  }
  ~FloatEnvironment() { __asm__ volatile("msr fpcr, %0" ::"r"(saved_)); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  uint64_t saved_;
};

#else
#error "bridge runs on x86-64 and aarch64"
#endif

}  // namespace bridge

#endif  // BRIDGE_CPU_FLOAT_ENVIRONMENT_H_
