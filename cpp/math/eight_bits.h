// 8-bit storage types: the floating formats of the Open Compute Project, the powers of two of its
// microscaling formats, and int8. A number beyond the largest one becomes the largest one. A NaN
// becomes the canonical NaN, or 0 as int8.
#pragma once

#include <cstdint>

#include "math/convert.h"

namespace bridge::math {

// Four exponent bits and three mantissa bits, without infinities; the largest number is 448.
struct float8_e4m3fn {
  std::uint8_t bits;
};

// Five exponent bits and two mantissa bits; the largest number is 57344.
struct float8_e5m2 {
  std::uint8_t bits;
};

// 2^(bits - 127), and a NaN: a scale, without sign or zero.
struct float8_e8m0fnu {
  std::uint8_t bits;
};

// Shifted into float's fields, a number is a power of two times its value; the product is exact.
BRIDGE_HD float to_float(float8_e4m3fn x) {
  const std::uint32_t magnitude = x.bits & 0x7Fu;
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x80u) << 24;
  const std::uint32_t number = to_bits(bit_cast<float>(magnitude << 20) * 0x1p120f);
  return bit_cast<float>(sign | (magnitude == 0x7Fu ? Format<float>::canonical_nan : number));
}

BRIDGE_HD float to_float(float8_e5m2 x) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7Fu) << 21;
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x80u) << 24;
  const std::uint32_t number = to_bits(bit_cast<float>(magnitude) * 0x1p112f);
  const std::uint32_t special = magnitude | 0x7F800000u;
  return bit_cast<float>(sign | (magnitude >= 0x0F800000u ? special : number));
}

BRIDGE_HD float to_float(float8_e8m0fnu x) {
  const std::uint32_t power = x.bits == 0 ? 0x00400000u : static_cast<std::uint32_t>(x.bits) << 23;
  return bit_cast<float>(x.bits == 0xFFu ? Format<float>::canonical_nan : power);
}

BRIDGE_HD float to_float(std::int8_t x) { return static_cast<float>(x); }

BRIDGE_HD double to_double(float8_e4m3fn x) { return static_cast<double>(to_float(x)); }
BRIDGE_HD double to_double(float8_e5m2 x) { return static_cast<double>(to_float(x)); }
BRIDGE_HD double to_double(float8_e8m0fnu x) { return static_cast<double>(to_float(x)); }
BRIDGE_HD double to_double(std::int8_t x) { return static_cast<double>(x); }

namespace detail {

// Rounds a magnitude to a format of `kMantissa` mantissa bits and an exponent bias of `kBias`. A
// number below the smallest normal one is rounded by an addition of a number whose last bit is the
// format's smallest number.
template <int kMantissa, int kBias>
BRIDGE_HD std::uint32_t round_magnitude(std::uint32_t magnitude, std::uint32_t largest) {
  constexpr int kShift = 23 - kMantissa;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  constexpr std::uint32_t kLeast = static_cast<std::uint32_t>(128 - kBias) << 23;
  constexpr std::uint32_t kUnit = static_cast<std::uint32_t>(128 - kBias + kShift) << 23;
  const std::uint32_t held = magnitude < largest ? magnitude : largest;
  const std::uint32_t half = (1u << (kShift - 1)) - 1;
  const std::uint32_t normal = (held - kRebias + half + ((held >> kShift) & 1u)) >> kShift;
  const std::uint32_t small = to_bits(bit_cast<float>(held) + bit_cast<float>(kUnit)) - kUnit;
  return held < kLeast ? small : normal;
}

template <>
struct Rounding<float8_e4m3fn> {
  static BRIDGE_HD float8_e4m3fn from(float x) {
    const std::uint32_t bits = to_bits(x);
    const std::uint32_t result =
        round_magnitude<3, 7>(bits & 0x7FFFFFFFu, 0x43E00000u) | ((bits >> 24) & 0x80u);
    return {static_cast<std::uint8_t>(x != x ? 0x7Fu : result)};
  }
  static BRIDGE_HD float8_e4m3fn from(double x) { return from(round_to_odd(x)); }
};

template <>
struct Rounding<float8_e5m2> {
  static BRIDGE_HD float8_e5m2 from(float x) {
    const std::uint32_t bits = to_bits(x);
    const std::uint32_t result =
        round_magnitude<2, 15>(bits & 0x7FFFFFFFu, 0x47600000u) | ((bits >> 24) & 0x80u);
    return {static_cast<std::uint8_t>(x != x ? 0x7Fu : result)};
  }
  static BRIDGE_HD float8_e5m2 from(double x) { return from(round_to_odd(x)); }
};

template <>
struct Rounding<float8_e8m0fnu> {
  // A power of two is exact; another number goes to the nearest power, a tie to the larger one.
  // Numbers below the smallest power, zeros among them, become it. Infinity and negative numbers
  // become NaN.
  static BRIDGE_HD float8_e8m0fnu from(float x) {
    const std::uint32_t bits = x == 0 ? 0 : to_bits(x);
    const std::uint32_t nearest = bits < 0x00600000u ? 0 : (bits + 0x00400000u) >> 23;
    const std::uint32_t held = nearest < 0xFEu ? nearest : 0xFEu;
    return {static_cast<std::uint8_t>(bits >= 0x7F800000u ? 0xFFu : held)};
  }
  static BRIDGE_HD float8_e8m0fnu from(double x) { return from(round_to_odd(x)); }
};

template <>
struct Rounding<std::int8_t> {
  static BRIDGE_HD std::int8_t from(float x) {
    const float low = x > -128.0f ? x : -128.0f;
    const float held = low < 127.0f ? low : 127.0f;
    // The last bit of 1.5 * 2^23 is 1: the addition rounds to a whole number.
    const std::uint32_t bits = to_bits(held + 0x1.8p23f) - 0x4B400000u;
    return static_cast<std::int8_t>(x != x ? 0u : bits);
  }
  static BRIDGE_HD std::int8_t from(double x) { return from(round_to_odd(x)); }
};

}  // namespace detail

}  // namespace bridge::math
