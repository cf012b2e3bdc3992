// Loads, stores and conversions of 16 bytes of elements at a time.
#ifndef BRIDGE_CUDA_VECTOR_H_
#define BRIDGE_CUDA_VECTOR_H_

#include <string.h>

#include <type_traits>

#include "cuda/simt.h"
#include "math/convert.h"
#include "math/eight_bits.h"

namespace bridge::simt {

template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T element[kCount];
};

// Exact if Real is at least as wide as T; kernels use no other case.
template <class Real, class T>
BRIDGE_DEVICE Real widen(T value) {
  if constexpr (sizeof(T) == 2 || (sizeof(T) == 1 && !std::is_same_v<T, uint8_t>)) {
    return static_cast<Real>(math::to_float(value));
  } else {
    return static_cast<Real>(value);
  }
}

// Element e of the words; e is known at compile time after unrolling.
template <class Real, class T>
BRIDGE_DEVICE Real widen_element(const Vector16& words, int e) {
  if constexpr (std::is_same_v<T, math::bfloat16>) {
    // The upper half of a word is a float once the lower half is cleared: one instruction.
    // Extracting the 16 bits first takes three.
    const uint32_t word = words.words[e / 2];
    return math::bit_cast<float>(e % 2 != 0 ? word & 0xffff0000u : word << 16);
  } else {
    Pack<T> pack;
    memcpy(&pack, &words, sizeof pack);
    return widen<Real>(pack.element[e]);
  }
}

// A pair of -infinity.
template <class T>
BRIDGE_HD constexpr uint32_t lowest_pair() {
  return std::is_same_v<T, math::bfloat16> ? 0xff80ff80u : 0xfc00fc00u;
}

// The larger of two 16-bit elements, for each half of the words. A NaN wins, and +0 is larger than
// -0.
template <class T>
BRIDGE_DEVICE uint32_t larger_pair(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  if constexpr (std::is_same_v<T, math::bfloat16>) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  }
  return result;
#else
  const math::FloatPair x = math::to_float_pair<T>(a), y = math::to_float_pair<T>(b);
  const auto larger = [](float p, float q) {
    return p > q || p != p || (p == q && !math::is_negative(p)) ? p : q;
  };
  return math::round_to_pair<T>({larger(x.first, y.first), larger(x.second, y.second)});
#endif
}

// The product of each element with 1, -1 or 0, which is exact.
template <class T>
BRIDGE_DEVICE uint32_t times_sign(uint32_t pair, float sign) {
#if defined(__CUDA_ARCH__)
  constexpr bool kBfloat16 = std::is_same_v<T, math::bfloat16>;
  constexpr uint32_t kOne = kBfloat16 ? 0x3f803f80u : 0x3c003c00u;
  const uint32_t factor = sign == 0 ? 0 : sign < 0 ? kOne | 0x80008000u : kOne;
  uint32_t result;
  if constexpr (kBfloat16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(factor), "r"(0x80008000u));
  } else {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(factor));
  }
  return result;
#else
  const math::FloatPair x = math::to_float_pair<T>(pair);
  return math::round_to_pair<T>({sign * x.first, sign * x.second});
#endif
}

// Replaces elements 2 i and 2 i + 1 of eight (i known at compile time) by -infinity where their
// bits are set. The multiplication moves four bits to the tops of four bytes, without collisions.
template <class T>
BRIDGE_DEVICE uint32_t lowest_where(uint32_t pair, uint32_t bits, int i) {
  const uint32_t tops = (i < 2 ? bits & 0xf : bits >> 4) * 0x10204080u;
#if defined(__CUDA_ARCH__)
  uint32_t mask;  // two bytes of sign for each of the two elements
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(mask) : "r"(tops), "r"(i % 2 == 0 ? 0x9988 : 0xbbaa));
#else
  const uint32_t two = i % 2 == 0 ? tops : tops >> 16;
  const uint32_t mask = (two & 0x80 ? 0xffffu : 0) | (two & 0x8000 ? 0xffff0000u : 0);
#endif
  return (pair & ~mask) | (lowest_pair<T>() & mask);
}

template <class T, class Real>
BRIDGE_DEVICE Vector16 round_to_words(const Real (&values)[Pack<T>::kCount]) {
  Pack<T> pack;
#pragma unroll
  for (int e = 0; e < Pack<T>::kCount; ++e) pack.element[e] = math::round_to<T>(values[e]);
  Vector16 words;
  memcpy(&words, &pack, sizeof words);
  return words;
}

}  // namespace bridge::simt

#endif  // BRIDGE_CUDA_VECTOR_H_
