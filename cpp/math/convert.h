// 16-bit storage types, and rounding to every storage type: to nearest, ties to even, denormals
// preserved, every NaN replaced by the canonical one.
#pragma once

#include <cstdint>
#include <type_traits>

#include "math/scalar.h"

namespace bridge::math {

struct float16 {
  std::uint16_t bits;
};

struct bfloat16 {
  std::uint16_t bits;
};

BRIDGE_HD float to_float(bfloat16 x) {
  return bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

BRIDGE_HD float to_float(float16 x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
#else
  // Shifted into float's exponent and mantissa fields, the number is 2^-112 times the value, for
  // denormals too; the multiplication is exact. Infinity and NaN then get an exponent field of all
  // ones.
  const std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7FFFu) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t finite = to_bits(bit_cast<float>(magnitude) * 0x1p112f);
  const std::uint32_t special = magnitude | 0x7F800000u;
  return bit_cast<float>(sign | (magnitude >= 0x0F800000u ? special : finite));
#endif
}

BRIDGE_HD float to_float(float x) { return x; }
BRIDGE_HD double to_double(float16 x) { return to_float(x); }
BRIDGE_HD double to_double(bfloat16 x) { return to_float(x); }
BRIDGE_HD double to_double(float x) { return x; }
BRIDGE_HD double to_double(double x) { return x; }

namespace detail {

BRIDGE_HD std::uint16_t round_to_bfloat16(float x) {
#if defined(__CUDA_ARCH__)
  std::uint16_t result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
#else
  // The rounding is done in integers, because VCVTNEPS2BF16 flushes denormals regardless of MXCSR.
  const std::uint32_t bits = to_bits(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(x != x ? 0x7FFFu : rounded);
#endif
}

BRIDGE_HD std::uint16_t round_to_float16(float x) {
#if defined(__CUDA_ARCH__)
  std::uint16_t result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
#else
  const std::uint32_t bits = to_bits(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Normal results: rebias the exponent by -112 and round off 13 bits. A carry out of the largest
  // exponent gives the bit pattern of infinity; larger inputs are clamped to the first that does.
  const std::uint32_t held = magnitude < 0x47800000u ? magnitude : 0x47800000u;
  const std::uint32_t normal = (held - 0x38000000u + 0xFFFu + ((held >> 13) & 1u)) >> 13;
  // Denormal results (below 2^-14): adding 1/2, whose last bit is 2^-24, rounds in hardware.
  const std::uint32_t denormal = to_bits(bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  std::uint32_t result = magnitude < 0x38800000u ? denormal : normal;
  result |= (bits >> 16) & 0x8000u;
  return static_cast<std::uint16_t>(x != x ? 0x7FFFu : result);
#endif
}

// Rounds x to odd in float: truncates it, and sets the last bit if the result is inexact. A second
// rounding, to at most 22 bits, then equals a single rounding of x. Finite values beyond float's
// range become its largest finite value; non-zero values below its smallest denormal become that
// denormal.
BRIDGE_HD float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const std::uint32_t bits = to_bits(nearest);
  const double back = static_cast<double>(nearest);
  const double size = absolute(x);
  const double back_size = absolute(back);
  // Truncate: step towards zero if the rounding went away from zero. Then set the odd bit.
  const std::uint32_t truncated = bits - (back_size > size ? 1u : 0u);
  const bool inexact = back_size > size || back_size < size;
  return bit_cast<float>(truncated | (inexact ? 1u : 0u));
}

template <class T>
struct Rounding;

template <>
struct Rounding<float16> {
  static BRIDGE_HD float16 from(float x) { return float16{round_to_float16(x)}; }
  static BRIDGE_HD float16 from(double x) { return from(round_to_odd(x)); }
};

template <>
struct Rounding<bfloat16> {
  static BRIDGE_HD bfloat16 from(float x) { return bfloat16{round_to_bfloat16(x)}; }
  static BRIDGE_HD bfloat16 from(double x) { return from(round_to_odd(x)); }
};

template <>
struct Rounding<float> {
  static BRIDGE_HD float from(float x) { return canonical_nan(x); }
  static BRIDGE_HD float from(double x) { return canonical_nan(static_cast<float>(x)); }
};

template <>
struct Rounding<double> {
  static BRIDGE_HD double from(float x) { return canonical_nan(static_cast<double>(x)); }
  static BRIDGE_HD double from(double x) { return canonical_nan(x); }
};

}  // namespace detail

// Rounds x to storage type T: to nearest, ties to even; every NaN becomes the canonical one.
template <class T>
BRIDGE_HD T round_to(float x) {
  return detail::Rounding<T>::from(x);
}

template <class T>
BRIDGE_HD T round_to(double x) {
  return detail::Rounding<T>::from(x);
}

// Rounds an x that is not NaN, so that a CPU skips the test for NaN.
template <class T, class Real>
BRIDGE_HD T round_number_to(Real x) {
#if !defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Real>) {
    return x;
  } else if constexpr (std::is_same_v<T, bfloat16> && std::is_same_v<Real, float>) {
    const std::uint32_t bits = to_bits(x);
    return bfloat16{static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
  }
#endif
  return round_to<T>(x);
}

// The result of round_to<bfloat16>, as a float.
BRIDGE_HD float rounded_to_bfloat16(float x) {
#if defined(__CUDA_ARCH__)
  // The upper half of a pair is at a float's position already: one instruction, no shift.
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(x), "f"(0.0f));
  return bit_cast<float>(bits);
#else
  return to_float(round_to<bfloat16>(x));
#endif
}

// The two 16-bit elements of a 32-bit word, the first in the low half, as vector loads and stores
// of a GPU transfer them. Converting each takes one instruction there.
struct FloatPair {
  float first;
  float second;
};

template <class T>
BRIDGE_HD FloatPair to_float_pair(std::uint32_t word);

template <>
BRIDGE_HD FloatPair to_float_pair<bfloat16>(std::uint32_t word) {
  return {bit_cast<float>(word << 16), bit_cast<float>(word & 0xFFFF0000u)};
}

template <>
BRIDGE_HD FloatPair to_float_pair<float16>(std::uint32_t word) {
  return {to_float(float16{static_cast<std::uint16_t>(word)}),
          to_float(float16{static_cast<std::uint16_t>(word >> 16)})};
}

// Rounds both numbers to T and packs their bits.
template <class T>
BRIDGE_HD std::uint32_t round_to_pair(FloatPair x) {
  const T first = round_to<T>(x.first);
  const T second = round_to<T>(x.second);
  return first.bits | static_cast<std::uint32_t>(second.bits) << 16;
}

}  // namespace bridge::math
