// The scalar arithmetic of every kernel: IEEE operations with the same result on every CPU and GPU.
// It uses no libm, no hardware approximation and no contraction by the compiler.
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

// Properties of a floating-point format.
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

// fma for a CPU that has none. The product of two floats is exact in double, so only the addition
// rounds. Rounding the sum to odd (the last bit records the discarded part) makes the second
// rounding, to float, give the result of the exact sum. This holds for float denormals too: double
// has more than two spare bits in every case.
BRIDGE_HD float emulated_fma(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  const double addend_in_sum = sum - product;
  const double lost = (product - (sum - addend_in_sum)) + (addend - addend_in_sum);
  const std::uint64_t bits = to_bits(sum);
  const std::uint64_t lost_bits = to_bits(lost);
  // Integer arithmetic replaces comparisons: SSE2 has no 64-bit comparison, and the surrounding
  // loop would stay scalar. `inexact`, `even`, `infinite` and `opposite` are 0 or 1.
  const std::uint64_t lost_size = lost_bits << 1;
  const std::uint64_t inexact = (lost_size | (0 - lost_size)) >> 63;
  const std::uint64_t even = ~bits & 1;
  const std::uint64_t infinite = (((bits >> 52) & 0x7FF) + 1) >> 11;
  const std::uint64_t opposite = (bits ^ lost_bits) >> 63;
  // One step away from zero if the lost part has the sign of the sum, otherwise one towards zero.
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
// 0, but unknown to the compiler: code that it does not see might write the variable.
__attribute__((used)) static std::uint32_t unknown_zero = 0;
#endif

// The same number, opaque to the compiler except that it does not change within a loop.
template <class Real>
BRIDGE_HD Real unknown(Real constant) {
#if defined(__CUDA_ARCH__)
  return constant;
#else
  return bit_cast<Real>(to_bits(constant) + unknown_zero);
#endif
}

}  // namespace detail

// The smaller (larger) of a constant and x; NaN if x is NaN. `bound` is neither NaN nor zero, so
// the sign of a zero is never in doubt. This spelling compiles to one minps/maxps, which return
// their second operand if one is NaN. In loops GCC finds this form only if it does not see that the
// bound is a constant.
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

// The larger of x and the bound; the bound if x is NaN.
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

// |x|; a NaN gives some NaN. A GPU folds abs.f32 into the instruction that uses the result, but a
// mask stays an instruction of its own.
template <class Real>
BRIDGE_HD Real absolute(Real x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Real) == sizeof(float)) return fabsf(x);
#endif
  return bit_cast<Real>(to_bits(x) & ~Format<Real>::sign_bit);
}

// -x. GCC would merge a minus with a fused multiply-add into another one, which gives 0 where -0 is
// right; it does not recognise a minus in this operation on the bits.
template <class Real>
BRIDGE_HD Real negated(Real x) {
#if defined(__CUDA_ARCH__)
  return bit_cast<Real>(to_bits(x) ^ Format<Real>::sign_bit);
#else
  // The addition carries into no other bit, and GCC sees that |-x| is |x|.
  return bit_cast<Real>(to_bits(x) + Format<Real>::sign_bit);
#endif
}

// True if the sign bit is set, also for -0 and NaN.
template <class Real>
BRIDGE_HD bool is_negative(Real x) {
  return bit_cast<typename Format<Real>::SignedBits>(x) < 0;
}

// (bits & mask) | set. With two constants nvcc would emit two instructions; this is one.
BRIDGE_HD std::uint32_t with_bits(std::uint32_t bits, std::uint32_t mask, std::uint32_t set) {
#if defined(__CUDA_ARCH__)
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(bits), "r"(mask), "r"(set));
  return result;
#else
  return (bits & mask) | set;
#endif
}

// x if its sign bit is clear, otherwise -0: one unsigned minimum of the bits.
template <class Real>
BRIDGE_HD Real positive_part(Real x) {
  const auto bits = to_bits(x);
  return bit_cast<Real>(bits < Format<Real>::sign_bit ? bits : Format<Real>::sign_bit);
}

// Replaces NaN by the canonical NaN. Processors disagree on the payload of a NaN; all use the
// single pattern of GPUs here.
template <class Real>
BRIDGE_HD Real canonical_nan(Real x) {
  return x != x ? bit_cast<Real>(Format<Real>::canonical_nan) : x;
}

// 2^n, for n within the exponents of normal numbers.
template <class Real>
BRIDGE_HD constexpr Real power_of_two(int n) {
  Real result = 1;
  for (; n > 0; --n) result *= 2;
  for (; n < 0; ++n) result /= 2;
  return result;
}

}  // namespace bridge::math
