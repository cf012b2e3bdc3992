// 2^v and a reciprocal for results of 16 bits: as short as the type allows, about 2^-16 for
// bfloat16 and 2^-18 for float16. scripts/fit_for_16_bits.py prints the constants of every
// *_for_16_bits.h.
#pragma once

#include <type_traits>

#include "math/exp2.h"
#include "math/precision.h"

namespace bridge::math::detail {

// What 2^(8 x) is, up to a factor, for x from 1/8 to 1/4: a polynomial of degree 4 whose cubic
// term the shift of x has taken away, so that three operations make it, and one of degree 5 in
// four.
template <class Precision>
struct FractionTable;

// 2^-18.0; the factor is 2^-6.755127.
template <>
struct FractionTable<SingleForBfloat16> {
  static constexpr float square = 0x1.88be64p-4f, linear = 0x1.804ed0p-5f, rest = 0x1.c6dd12p-13f;
};

// 2^-21.8; the factor is 2^-6.902084.
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

// 2^(v - 123) times the factor for t = 2 + v 2^(1 - kWholeBits), v from 3 on. The bits of t are
// those of a fixed-point number: what is whole in v becomes the exponent, the fraction the
// mantissa of x.
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
// 2^kLift; the factor, a polynomial in that product, makes it good.
struct RoughReciprocal {
  float seed;
  float factor;
};

// To 2^-14.9, a square and a constant; times 0x1.ff0536p-1 2^(3 kLift).
template <int kLift>
BRIDGE_HD RoughReciprocal reciprocal_by_square(float d) {
  constexpr float scale = power_of_two<float>(kLift);
  constexpr float centre = 1.5f * scale, least = 0x1.7f0534p-1f * scale * scale;
  const float seed = bit_cast<float>(Exp2Table<float>::reciprocal_seed +
                                     (static_cast<std::uint32_t>(kLift) << 23) - to_bits(d));
  const float distance = fma(-d, seed, centre);
  return {seed, fma(distance, distance, least)};
}

// To 2^-20.2; times 2^kLift.
template <int kLift>
BRIDGE_HD RoughReciprocal reciprocal_by_cubic(float d) {
  constexpr float scale = power_of_two<float>(kLift);
  const float seed = bit_cast<float>(Exp2Table<float>::reciprocal_seed - to_bits(d));
  const float z = d * seed;
  const float high = fma(z, -0x1.00a790p+0f * scale, 0x1.00a792p+2f * scale);
  return {seed, fma(z, fma(z, high, -0x1.80d172p+2f * scale), 0x1.0053c2p+2f * scale)};
}

}  // namespace bridge::math::detail
