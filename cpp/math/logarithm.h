// Logarithms for float and double, with errors of at most 2 units in the last place: -infinity at
// 0, NaN below 0. Let x = 2^n m with m from sqrt(1/2) to sqrt(2), f = m - 1 and s = f / (2 + f).
// Then log(m) = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + r)), where r is s^2 times a polynomial in s^2.
#pragma once

#include "math/exponential.h"

namespace bridge::math {

namespace detail {

// (log(m) - 2 s) / (s z) in powers of z = s^2.
template <class Real>
struct LogarithmTable;

// Error 2^-35.0 relative to log(m).
template <>
struct LogarithmTable<float> {
  static constexpr int degree = 3;
  static constexpr float coefficients[degree + 1] = {
      0x1.555554p-1f,
      0x1.999bd4p-2f,
      0x1.23f1a0p-2f,
      0x1.ec1e42p-3f,
  };
};

// Error 2^-57.6 relative to log(m).
template <>
struct LogarithmTable<double> {
  static constexpr int degree = 6;
  static constexpr double coefficients[degree + 1] = {
      0x1.5555555555558p-1, 0x1.99999999952d8p-2, 0x1.2492492df26cep-2, 0x1.c71c62e40b94ep-3,
      0x1.7462b5152e8a6p-3, 0x1.39fe52a20dc69p-3, 0x1.2b58f4c8d5f63p-3,
  };
};

template <class Real>
BRIDGE_HD Real infinity() {
  using Bits = typename Format<Real>::Bits;
  constexpr Bits mantissa = (Bits(1) << Format<Real>::mantissa_bits) - 1;
  return bit_cast<Real>(static_cast<Bits>(Format<Real>::canonical_nan & ~mantissa));
}

template <class Real>
struct Mantissa {
  Real n;
  Real m;
};

// Splits a normal x > 0.
template <class Real>
BRIDGE_HD Mantissa<Real> mantissa_of(Real x) {
  using Bits = typename Format<Real>::Bits;
  constexpr int mantissa = Format<Real>::mantissa_bits;
  constexpr Real root_half = sizeof(Real) == sizeof(float) ? 0x1.6a09e6p-1 : 0x1.6a09e667f3bcdp-1;
  // The offset is larger than any negative exponent's size, so that the difference is not negative.
  constexpr Bits offset = Bits(1) << (sizeof(Real) == sizeof(float) ? 7 : 11);
  const Bits bits = to_bits(x) - to_bits(root_half) + (offset << mantissa);
  const Bits exponent = bits >> mantissa;
  const Bits rest = to_bits(x) - ((exponent - offset) << mantissa);
  // An integer below 2^22, added to the bits of the magic number, adds that many units.
  constexpr Real magic = ExponentTable<Real>::magic;
  const Real n = bit_cast<Real>(to_bits(magic) + exponent) - (magic + Real(offset));
  return {n, bit_cast<Real>(rest)};
}

// log(2^n (1 + f)) + correction.
template <class Real>
BRIDGE_HD Real logarithm_of(Real n, Real f, Real correction) {
  using Table = ExponentTable<Real>;
  const Real s = f / (2 + f);
  const Real z = s * s;
  const Real half_square = Real(0.5) * f * f;
  const Real r = z * polynomial<LogarithmTable<Real>>(z);
  const Real small = fma(s, half_square + r, fma(n, Table::log2_low, correction));
  return fma(n, Table::log2_high, f - (half_square - small));
}

}  // namespace detail

template <class Real>
BRIDGE_HD Real log(Real x) {
  constexpr int lift = Format<Real>::mantissa_bits + 2;
  constexpr Real smallest_normal = power_of_two<Real>(1 - Format<Real>::exponent_bias);
  const bool subnormal = x < smallest_normal;
  const auto parts = detail::mantissa_of(subnormal ? x * power_of_two<Real>(lift) : x);
  const Real n = parts.n - (subnormal ? Real(lift) : Real(0));
  const Real y = detail::logarithm_of(n, parts.m - 1, Real(0));
  const Real positive = x > Format<Real>::largest ? x : y;
  const Real nowhere =
      x == 0 ? -detail::infinity<Real>() : bit_cast<Real>(Format<Real>::canonical_nan);
  return x > 0 ? positive : nowhere;
}

// log(1 + x); the rounding error of 1 + x is added at the end.
template <class Real>
BRIDGE_HD Real log1p(Real x) {
  const Real sum = 1 + x;
  const Real lost = x > 1 ? 1 - (sum - x) : x - (sum - 1);
  const auto parts = detail::mantissa_of(sum);
  const bool is_near = parts.n == 0;
  const Real f = is_near ? x : parts.m - 1;
  const Real correction = is_near ? Real(0) : lost / sum;
  const Real y = detail::logarithm_of(parts.n, f, correction);
  const Real above = x > Format<Real>::largest ? x : (x == 0 ? x : y);
  const Real nowhere =
      x == -1 ? -detail::infinity<Real>() : bit_cast<Real>(Format<Real>::canonical_nan);
  return x > -1 ? above : nowhere;
}

// log(1 + e^x).
template <class Real>
BRIDGE_HD Real softplus(Real x) {
  const Real rest = log1p(exp(-absolute(x)));
  return is_negative(x) ? rest : x + rest;
}

}  // namespace bridge::math
