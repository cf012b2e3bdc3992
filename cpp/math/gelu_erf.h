// GELU as h Phi(h). The upper tail of the normal distribution is Q(a) = exp(-a^2/2) R(a), and
// R(a) = (1 + g) / d with d = slope a + offset and g a polynomial in t = scale a / d + shift.
#pragma once

#include "math/exp2.h"

namespace bridge::math::detail {

template <class Real>
struct ErfTable;

template <>
struct ErfTable<float> {
  static constexpr float bound = 15.0f;  // past it every result has underflowed
  static constexpr float rate_high = 0x1.715476p-1f, rate_low = 0x1.4ae0cp-27f;  // log2(e)/2
  static constexpr float density = 0x1.988454p-2f;                               // 1/sqrt(2 pi)
  static constexpr float slope = 0x1.600244p+0f, offset = 0x1.678dcp+1f, scale = 2.0f,
                         shift = -0.625f;
  // slope and offset times density, which were chosen to be this close to floats: 2^-37.
  static constexpr float slope_density = 0x1.18dcc8p-1f, offset_density = 0x1.1ee1e2p+0f;
  static constexpr int degree = 11;
  // 2^-28.0 of 1 + g.
  static constexpr float coefficients[degree + 1] = {
      -0x1.d84742p-9f, -0x1.529f58p-1f, 0x1.d7dd50p-5f,  0x1.082038p-3f,
      0x1.32a0c4p-7f,  -0x1.250548p-5f, -0x1.3abf38p-6f, 0x1.91aab4p-9f,
      0x1.4ed82cp-7f,  0x1.52ae64p-8f,  -0x1.18836ep-9f, -0x1.6111d8p-9f,
  };
};

template <>
struct ErfTable<double> {
  static constexpr double bound = 39.5;
  static constexpr double rate_high = 0x1.71547652b82fep-1, rate_low = 0x1.777d0ffda0d24p-57;
  static constexpr double density = 0x1.9884533d43651p-2;
  static constexpr double slope = 0x1.0000000000053p+1, offset = 0x1.800000001219p+1;
  static constexpr double scale = 4.0, shift = -1.0;
  static constexpr double slope_density = 0x1.9884533d436d5p-1;  // to 2^-65
  static constexpr double offset_density = 0x1.32633e6e00fc6p+0;
  static constexpr int degree = 31;
  // 2^-53.5 of 1 + g.
  static constexpr double coefficients[degree + 1] = {
      0x1.e0a201875fd77p-3,   -0x1.8f90561b1291dp-2,  -0x1.d700b3f6eebb7p-4,
      0x1.253dbbc67f809p-5,   0x1.20ffab331d93ep-5,   0x1.045092f01ca01p-7,
      -0x1.3de14da0f08f5p-8,  -0x1.5971760ccd8f7p-8,  -0x1.13d4e973e68eap-9,
      0x1.58f725365a97ap-13,  0x1.b999edcf35abdp-11,  0x1.4a5c64676de96p-11,
      0x1.df0e67ff47878p-13,  -0x1.3138f53a29630p-15, -0x1.ffecdd4635aefp-14,
      -0x1.a3ffc4cc59342p-14, -0x1.8ae9626ada7b3p-15, -0x1.4bcc029a54b13p-18,
      0x1.0f6c3c0358226p-16,  0x1.487dce3c63fd4p-16,  0x1.6aadae0d77b55p-17,
      0x1.b18197535c1cap-21,  0x1.6cc007b8bee42p-27,  0x1.7833fa54b3c6bp-19,
      -0x1.a18ca65f6df58p-20, -0x1.c6dfdc34eff56p-18, -0x1.a929760ffbab3p-19,
      0x1.6939a058ad720p-19,  0x1.5f30cc56fa6dep-19,  0x1.0d821ab7df0e8p-24,
      -0x1.2f9df6f7c84bep-21, -0x1.5367e509dc0c9p-23,
  };
};

// exp(-a^2/2) = 2^-k (1 + power), with a^2 carried exactly as high + low.
template <class Real>
struct Gaussian {
  Real lifted;  // 2^(lift - k)
  Real power;
};

template <class Real>
BRIDGE_HD Gaussian<Real> gaussian(Real square, Real square_low) {
  using Table = ErfTable<Real>;
  const Rounded<Real> rounded = round_product(Table::rate_high, square);
  Real f = fma(-Table::rate_high, square, rounded.k);
  f = fma(-Table::rate_high, square_low, fma(-Table::rate_low, square, f));
  return {rounded.lifted, exp2_minus_one(f)};
}

template <class Real, int Order>
BRIDGE_HD Real gelu_erf(Real h) {
  using Table = ErfTable<Real>;
  constexpr Real unlift = power_of_two<Real>(-Exp2Table<Real>::lift);
  const Real a = min_keep_nan(Table::bound, absolute(h));
  const Real square = a * a;
  const Real square_low = fma(a, a, -square);
  const Gaussian<Real> bell = gaussian(square, square_low);
  if constexpr (Order == 2) {
    // gelu'' = phi(h) (2 - h^2).
    const Real factor = ((2 - square) - square_low) * Table::density;
    return (fma(factor, bell.power, factor) * bell.lifted) * unlift;
  } else {
    // The offset has enough trailing zero bits for offset - (slope a + offset) to be exact.
    const Real sum = fma(Table::slope, a, Table::offset);
    const Pair<Real> d{sum, fma(Table::slope, a, Table::offset - sum)};
    const Real rough = rough_reciprocal(d.high);
    if constexpr (Order == 0) {
      const Real quotient = divide(a, d, rough);
      const Real g = polynomial<Table>(fma(quotient, Table::scale, Table::shift));
      // (1 + g)(1 + power) - 1, kept apart from the 1 so that its rounding counts less.
      const Real excess = fma(bell.power, g, bell.power) + g;
      const Real tail = fma(quotient, excess, quotient) * bell.lifted;
      return fma(tail, -unlift, positive_part(h));
    } else {
      // gelu'(-a) = exp(-a^2/2) (R - a / sqrt(2 pi)), and gelu'(a) = 1 - gelu'(-a). Taken over
      // the denominator d the difference cancels before anything has been rounded much.
      const Real reciprocal = fma(rough, fma(-d.high, rough, Real(1)), rough);
      const Real g = polynomial<Table>(fma(a * reciprocal, Table::scale, Table::shift));
      const Real small = fma(-Table::slope_density, square_low, g);
      const Real large =
          fma(-Table::slope_density, square, fma(-Table::offset_density, a, Real(1)));
      const Real factor = divide(large + small, d, rough);
      const Real tail = fma(factor, bell.power, factor) * bell.lifted;
      const bool negative = is_negative(h);
      return fma(tail, negative ? unlift : -unlift, negative ? Real(0) : Real(1));
    }
  }
}

}  // namespace bridge::math::detail
