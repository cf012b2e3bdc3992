// The scalar arithmetic that every kernel is written in: IEEE operations with one meaning on every
// CPU and GPU. No libm, no hardware approximation, no contraction behind our back.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define BRIDGE_HD __host__ __device__ __forceinline__
#else
#define BRIDGE_HD inline __attribute__((always_inline))
#endif

namespace bridge::math {

template <class To, class From>
BRIDGE_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// What the algorithms need to know about a floating-point format.
template <class Real>
struct Format;

template <>
struct Format<float> {
  using Bits = std::uint32_t;
  using SignedBits = std::int32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr int exponent_bias = 127;
  static constexpr Bits sign_bit = 0x80000000u;
  static constexpr Bits canonical_nan = 0x7FFFFFFFu;
  static constexpr float largest = 0x1.fffffep+127f;
};

template <>
struct Format<double> {
  using Bits = std::uint64_t;
  using SignedBits = std::int64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr int exponent_bias = 1023;
  static constexpr Bits sign_bit = 0x8000000000000000u;
  static constexpr Bits canonical_nan = 0x7FFFFFFFFFFFFFFFu;
  static constexpr double largest = 0x1.fffffffffffffp+1023;
};

template <class Real>
BRIDGE_HD typename Format<Real>::Bits to_bits(Real x) {
  return bit_cast<typename Format<Real>::Bits>(x);
}

// A CPU without fma: the product of two floats is exact in double, so only the addition rounds.
// Rounding it to odd (keep the discarded part in the last bit) makes the second rounding, to
// float, see what the exact sum would have shown it. This holds for float denormals too: double
// has more than two spare bits in every case.
BRIDGE_HD float emulated_fma(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  const double addend_in_sum = sum - product;
  const double lost = (product - (sum - addend_in_sum)) + (addend - addend_in_sum);
  const std::uint64_t bits = to_bits(sum);
  const std::uint64_t lost_bits = to_bits(lost);
  // Integer arithmetic where a comparison would do: SSE2 has no 64-bit one, and the loop around
  // this would stay scalar. Each of these is 0 or 1.
  const std::uint64_t lost_size = lost_bits << 1;
  const std::uint64_t inexact = (lost_size | (0 - lost_size)) >> 63;
  const std::uint64_t even = ~bits & 1;
  const std::uint64_t infinite = (((bits >> 52) & 0x7FF) + 1) >> 11;
  const std::uint64_t opposite = (bits ^ lost_bits) >> 63;
  // One step away from zero if the lost part has the sum's sign, one towards it if not.
  const std::uint64_t moves = 0 - (inexact & even & ~infinite);
  return static_cast<float>(bit_cast<double>(bits + (moves & (1 - 2 * opposite))));
}

// a * b + c, rounded once.
BRIDGE_HD float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return emulated_fma(a, b, c);
#endif
}

BRIDGE_HD double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

namespace detail {

#if !defined(__CUDA_ARCH__)
// 0, of which a compiler must not think so: it may be written where it does not see.
__attribute__((used)) static std::uint32_t unknown_zero = 0;
#endif

// The same number, of which a compiler knows nothing, but that it does not change in a loop.
template <class Real>
BRIDGE_HD Real unknown(Real constant) {
#if defined(__CUDA_ARCH__)
  return constant;
#else
  return bit_cast<Real>(to_bits(constant) + unknown_zero);
#endif
}

}  // namespace detail

// The smaller (larger) of a constant and x; NaN if x is. `bound` is neither NaN nor zero, so no
// sign of zero is in doubt. The spelling maps to one minps/maxps, which return their second
// operand when one is NaN: in GCC's loops where it does not see that the bound is a constant.
BRIDGE_HD float min_keep_nan(float bound, float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(bound), "f"(x));
  return result;
#else
  const float held = detail::unknown(bound);
  return held < x ? held : x;
#endif
}

BRIDGE_HD float max_keep_nan(float bound, float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(bound), "f"(x));
  return result;
#else
  const float held = detail::unknown(bound);
  return held > x ? held : x;
#endif
}

// The larger; the bound for x that is NaN.
template <class Real>
BRIDGE_HD Real larger_but_nan(Real x, Real bound) {
#if defined(__CUDA_ARCH__)
  return fmax(x, bound);
#else
  return x > bound ? x : bound;
#endif
}

BRIDGE_HD double min_keep_nan(double bound, double x) { return bound < x ? bound : x; }
BRIDGE_HD double max_keep_nan(double bound, double x) { return bound > x ? bound : x; }

// As abs.f32 the GPU folds it into the instruction that takes the result; a mask stays one of its
// own. (Of a NaN it makes some NaN.)
template <class Real>
BRIDGE_HD Real absolute(Real x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Real) == sizeof(float)) return fabsf(x);
#endif
  return bit_cast<Real>(to_bits(x) & ~Format<Real>::sign_bit);
}

// -x. GCC takes the minus of a fused multiplication and addition for another of these, which gives
// 0 where -0 is right; it does not know the bits for a minus.
template <class Real>
BRIDGE_HD Real negated(Real x) {
#if defined(__CUDA_ARCH__)
  return bit_cast<Real>(to_bits(x) ^ Format<Real>::sign_bit);
#else
  // A sum carries into nothing, and GCC sees that the magnitude of -x is that of x.
  return bit_cast<Real>(to_bits(x) + Format<Real>::sign_bit);
#endif
}

// Its sign bit is set: true for -0 and for NaNs that carry it.
template <class Real>
BRIDGE_HD bool is_negative(Real x) {
  return bit_cast<typename Format<Real>::SignedBits>(x) < 0;
}

// (bits & mask) | set. Of two constants the compiler makes two instructions, unless it is told.
BRIDGE_HD std::uint32_t with_bits(std::uint32_t bits, std::uint32_t mask, std::uint32_t set) {
#if defined(__CUDA_ARCH__)
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(bits), "r"(mask), "r"(set));
  return result;
#else
  return (bits & mask) | set;
#endif
}

// x where its sign bit is clear, -0 elsewhere: one unsigned minimum of the bits.
template <class Real>
BRIDGE_HD Real positive_part(Real x) {
  const auto bits = to_bits(x);
  return bit_cast<Real>(bits < Format<Real>::sign_bit ? bits : Format<Real>::sign_bit);
}

// Hardware disagrees on the payload of a NaN. The GPU's single pattern is everybody's here.
template <class Real>
BRIDGE_HD Real canonical_nan(Real x) {
  return x != x ? bit_cast<Real>(Format<Real>::canonical_nan) : x;
}

// 2^n for n within the exponents of normal numbers.
template <class Real>
BRIDGE_HD constexpr Real power_of_two(int n) {
  Real result = 1;
  for (; n > 0; --n) result *= 2;
  for (; n < 0; ++n) result /= 2;
  return result;
}

}  // namespace bridge::math
