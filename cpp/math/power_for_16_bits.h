// 2^v and a reciprocal for results of 16 bits, as short as the type allows: errors of about 2^-16
// for bfloat16 and 2^-18 for float16. scripts/fit_for_16_bits.py prints the constants of every
// *_for_16_bits.h.
#pragma once

#include <type_traits>

#include "math/exp2.h"
#include "math/precision.h"

namespace bridge::math::detail {

// 2^(8 x) up to a factor, for x from 1/8 to 1/4. For bfloat16 it is a polynomial of degree 4 in
// three operations, because a shift of x removes the cubic term; for float16 it has degree 5 and
// takes four operations.
template <class Precision>
struct FractionTable;

// Error 2^-18.0; the factor is 2^-6.755127.
template <>
struct FractionTable<SingleForBfloat16> {
  static constexpr float square = 0x1.88be64p-4f, linear = 0x1.804ed0p-5f, rest = 0x1.c6dd12p-13f;
};

// Error 2^-21.8; the factor is 2^-6.902084.
template <>
struct FractionTable<SingleForFloat16> {
  static constexpr float square = 0x1.485c38p-3f, linear = 0x1.e06a7ap-4f, rest = 0x1.5f64fcp-6f;
  static constexpr float last = 0x1.113d3ep-7f;
};

template <class Table, bool kQuartic>
BRIDGE_HD float power_of_fraction_for_16_bits(float x) {
  const float y = fma(x, x, Table::square);
  const float z = fma(y, y, fma(x, Table::linear, Table::rest));
  if constexpr (kQuartic) {
    return z;
  } else {
    return fma(z, x, Table::last);
  }
}

template <class Precision>
constexpr bool is_quartic = std::is_same_v<Precision, SingleForBfloat16>;

// 2^(v - 123) times the factor, for t = 2 + v 2^(1 - kWholeBits) and v >= 3. The bits of t are a
// fixed-point number: the whole part of v becomes the exponent, the fraction becomes the mantissa
// of x.
template <class Precision, int kWholeBits>
BRIDGE_HD float power_of_fixed(float t) {
  const std::uint32_t fixed = to_bits(t) << kWholeBits;
  const std::uint32_t fraction = with_bits(fixed, 0x007FFFFFu, 0x3E000000u);
  const float power =
      power_of_fraction_for_16_bits<FractionTable<Precision>, is_quartic<Precision>>(
          bit_cast<float>(fraction));
  return bit_cast<float>(to_bits(power) + (fixed - fraction));
}

// 1/d as seed * factor, up to a constant. The product of d and its integer seed is within 5.1 % of
// 2^kLift; the factor, a polynomial in that product, corrects the difference.
struct RoughReciprocal {
  float seed;
  float factor;
};

// 1/d times 0x1.ff0536p-1 2^(3 kLift), with error 2^-14.9; the factor is a square plus a constant.
template <int kLift>
BRIDGE_HD RoughReciprocal reciprocal_by_square(float d) {
  constexpr float scale = power_of_two<float>(kLift);
  constexpr float centre = 1.5f * scale, least = 0x1.7f0534p-1f * scale * scale;
  const float seed = bit_cast<float>(Exp2Table<float>::reciprocal_seed +
                                     (static_cast<std::uint32_t>(kLift) << 23) - to_bits(d));
  const float distance = fma(-d, seed, centre);
  return {seed, fma(distance, distance, least)};
}

// 1/d times 2^kLift, with error 2^-20.2.
template <int kLift>
BRIDGE_HD RoughReciprocal reciprocal_by_cubic(float d) {
  constexpr float scale = power_of_two<float>(kLift);
  const float seed = bit_cast<float>(Exp2Table<float>::reciprocal_seed - to_bits(d));
  const float z = d * seed;
  const float high = fma(z, -0x1.00a790p+0f * scale, 0x1.00a792p+2f * scale);
  return {seed, fma(z, fma(z, high, -0x1.80d172p+2f * scale), 0x1.0053c2p+2f * scale)};
}

}  // namespace bridge::math::detail
