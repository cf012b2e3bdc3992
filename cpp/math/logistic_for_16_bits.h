// The logistic function, silu and silu's derivative for results of 16 bits, in float arithmetic.
// Errors are at most 2^-14.7 for bfloat16 and 2^-19.2 for float16, down to where results underflow;
// near the zero of the derivative, where terms cancel, 2^-26 more. For doubles these are the exact
// functions.
#pragma once

#include "math/exponential.h"
#include "math/power_for_16_bits.h"

namespace bridge::math {

namespace detail {

template <class Precision, int kLift>
BRIDGE_HD RoughReciprocal reciprocal_for_16_bits(float d) {
  if constexpr (is_quartic<Precision>) {
    return reciprocal_by_square<kLift>(d);
  } else {
    return reciprocal_by_cubic<kLift>(d);
  }
}

// s = e^-w up to a factor, d = 1 + s up to another, and 1 / (1 + s)^2. The factors cancel in
// products of s, a linear function of s and d, and the reciprocal's parts.
struct RoughLogistic {
  float s;
  float d;
  RoughReciprocal reciprocal;
};

// For w >= 0, with rate * a = unit * w / ln 2. Near the zero of 1 + s - w, s keeps the accuracy of
// float: the polynomial is exact there, and v = k + f is not made a fixed-point number, but split
// by a magic sum. The remainder, unit * (f - 3/2), already has the shift that the polynomial needs,
// at no extra operation. s contains the fourth power of the unit, which keeps it normal.
template <class Precision, class Table>
BRIDGE_HD RoughLogistic logistic_for_16_bits(float a, float rate) {
  constexpr float unit = Table::unit, magic = unit * 0x1p23f;
  const float shifted = fma(rate, a, magic);
  const float x = fma(rate, a, (magic - 1.5f * unit) - shifted);
  const float fraction = power_of_fraction_for_16_bits<Table, is_quartic<Precision>>(-x);
  const float s = bit_cast<float>(to_bits(fraction) + to_bits(shifted) * 0xFF800000u);
  const float d = fma(s, Table::constant, Table::one);
  return {s, d, reciprocal_for_16_bits<Precision, Table::lift>(d * d)};
}

// The derivative at h from the derivative at -|h|, for a function that tends to h at one end and to
// 0 at the other.
BRIDGE_HD float first_derivative_at(float h, float at_minus) {
  return is_negative(h) ? at_minus : 1.0f - at_minus;
}

// The derivative of h / (1 + e^-w) from a = |h| and slope = dw/da; at -a it is s (1 + s - a w') /
// (1 + s)^2.
template <class Precision, class Table>
BRIDGE_HD float logistic_slope_for_16_bits(float h, float a, float rate, float slope) {
  const auto parts = logistic_for_16_bits<Precision, Table>(a, rate);
  const float product = parts.s * fma(-slope, a, parts.d);
  return first_derivative_at(h, product * parts.reciprocal.seed * parts.reciprocal.factor);
}

// Constants for the sigmoid form of GELU and for silu, whose derivatives have their zero at the
// same w. They are the script's numbers times powers of unit / 32.
template <class Precision>
struct LogisticPowers;

// Error 2^-17.4.
template <>
struct LogisticPowers<SingleForBfloat16> {
  static constexpr float unit = 256.0f;
  static constexpr int lift = -13;
  static constexpr float constant = 0x1.ff0536p-40f;
  static constexpr float square = 0x1.89fb40p+18f, linear = 0x1.804484p+28f;
  static constexpr float rest = 0x1.753aaap+31f;
  static constexpr float one = 0x1.acd5cep-1f;
};

// Error 2^-22.7.
template <>
struct LogisticPowers<SingleForFloat16> {
  static constexpr float unit = 32.0f;
  static constexpr int lift = -36;
  static constexpr float constant = 0x1p-36f;
  static constexpr float square = 0x1.485c0ap+13f, linear = 0x1.e06a80p+20f;
  static constexpr float rest = 0x1.5f652cp+26f, last = 0x1.113d34p+33f;
  static constexpr float one = 0x1.837682p-2f;
};

// silu has w = a. At the bound a e^-a has underflowed in float, so that its product with a large
// number is 0 too.
template <class Precision>
struct SiluTable : LogisticPowers<Precision> {
  static constexpr float bound = 109.0f, rate = 0x1.715476p+0f * LogisticPowers<Precision>::unit;
};

struct RoughSilu {
  float a;
  RoughLogistic logistic;
};

// The part that the three functions have in common; a compiler computes it once.
template <class Precision>
BRIDGE_HD RoughSilu silu_parts_for_16_bits(float x) {
  using Table = SiluTable<Precision>;
  const float a = min_keep_nan(Table::bound, absolute(x));
  return {a, logistic_for_16_bits<Precision, Table>(a, Table::rate)};
}

}  // namespace detail

// 1 / (1 + e^-x).
template <class Precision>
BRIDGE_HD float sigmoid_for_16_bits(float x) {
  const auto [a, parts] = detail::silu_parts_for_16_bits<Precision>(x);
  const float at_minus = parts.s * parts.d * parts.reciprocal.seed * parts.reciprocal.factor;
  // The bits of s do not show that x is NaN, but a does.
  return fma(a, 0.0f, is_negative(x) ? at_minus : 1.0f - at_minus);
}
template <class Precision>
BRIDGE_HD double sigmoid_for_16_bits(double x) {
  return sigmoid(x);
}

// x / (1 + e^-x); -0 at -infinity.
template <class Precision>
BRIDGE_HD float silu_for_16_bits(float x) {
  const auto [a, parts] = detail::silu_parts_for_16_bits<Precision>(x);
  const float product = a * (parts.s * parts.d) * parts.reciprocal.seed;
  return fma(-product, parts.reciprocal.factor, positive_part(x));
}
template <class Precision>
BRIDGE_HD double silu_for_16_bits(double x) {
  return silu(x);
}

// The derivative of silu.
template <class Precision>
BRIDGE_HD float silu_slope_for_16_bits(float x) {
  using Table = detail::SiluTable<Precision>;
  const float a = min_keep_nan(Table::bound, absolute(x));
  return detail::logistic_slope_for_16_bits<Precision, Table>(x, a, Table::rate, Table::one);
}
template <class Precision>
BRIDGE_HD double silu_slope_for_16_bits(double x) {
  const double s = sigmoid(x);
  return s + s * (x * sigmoid(-x));
}

}  // namespace bridge::math
