// GELU as h Phi(h). The upper tail of the normal distribution is Q(a) = exp(-a^2/2) R(a), and
// R(a) = (1 + g) / d with d = slope a + offset and g a polynomial in t = scale a / d + shift.
#pragma once

#include "math/exp2.h"

namespace bridge::math::detail {

template <class Real>
struct ErfTable;

// `rate` is log2(e)/2, `density` 1/sqrt(2 pi). The offset has enough trailing zero bits for offset
// - (slope a + offset) to be exact. Beyond the bound every result has underflowed.
template <>
struct ErfTable<float> {
  static constexpr float bound = 15.0f;
  static constexpr float rate_high = 0x1.715476p-1f, rate_low = 0x1.4ae0cp-27f;
  static constexpr float density = 0x1.988454p-2f, density_low = -0x1.857936p-27f;
  static constexpr float slope = 1.375f, offset = 2.8125f, scale = 1.375f;
};

template <>
struct ErfTable<double> {
  static constexpr double bound = 39.5;
  static constexpr double rate_high = 0x1.71547652b82fep-1, rate_low = 0x1.777d0ffda0d24p-57;
  static constexpr double density = 0x1.9884533d43651p-2;
  static constexpr double density_low = -0x1.cbc0d30ebfd15p-56;
  static constexpr double slope = 2.0, offset = 3.0, scale = 4.0;
};

// Coefficients of g in powers of t. g is most accurate where |t| is small: for the value in the
// middle of its range, for the derivative where R cancels against a / sqrt(2 pi).
template <class Real, int Order>
struct ErfTail;

// Error 2^-27.8 relative to 1 + g, and 2^-32 near a = 0, where 16-bit denormals show the last bit.
template <>
struct ErfTail<float, 0> {
  static constexpr float shift = -0.4609375f;
  static constexpr int degree = 11;
  static constexpr float coefficients[degree + 1] = {
      -0x1.0fe0bcp-5f, -0x1.e8fa6cp-1f, 0x1.4c16a6p-3f,  0x1.991118p-2f,
      0x1.f610cap-12f, -0x1.10c63cp-2f, -0x1.518870p-3f, 0x1.9d26fap-4f,
      0x1.f075f8p-3f,  0x1.bb75aep-4f,  -0x1.337ab2p-3f, -0x1.48dc1cp-3f,
  };
};

// Error 2^-28.2 relative to 1 + g.
template <>
struct ErfTail<float, 1> {
  static constexpr float shift = -0.25f;
  static constexpr int degree = 11;
  static constexpr float coefficients[degree + 1] = {
      0x1.5fe6bcp-3f,  -0x1.f1d552p-1f, -0x1.21f102p-4f, 0x1.415f50p-2f,
      0x1.50b674p-3f,  -0x1.c03488p-5f, -0x1.0784e0p-3f, -0x1.1ef8fep-4f,
      -0x1.e53368p-7f, 0x1.d7ee98p-6f,  0x1.d1215ap-3f,  -0x1.4d4edap-3f,
  };
};

// Error 2^-53.9 relative to 1 + g.
template <int Order>
struct ErfTail<double, Order> {
  static constexpr double shift = -1.0;
  static constexpr int degree = 31;
  static constexpr double coefficients[degree + 1] = {
      0x1.e0a2018737049p-3,   -0x1.8f90561ae5cdfp-2,  -0x1.d700b3f7391eep-4,
      0x1.253dbbc61abe0p-5,   0x1.20ffab332a940p-5,   0x1.045092f0b4dcap-7,
      -0x1.3de14da066575p-8,  -0x1.5971760cdf84dp-8,  -0x1.13d4e974667a2p-9,
      0x1.58f725310ad7ap-13,  0x1.b999edcee9684p-11,  0x1.4a5c6467b6307p-11,
      0x1.df0e6800c84aap-13,  -0x1.3138f53686811p-15, -0x1.ffecdd45c74bbp-14,
      -0x1.a3ffc4ccb6be0p-14, -0x1.8ae9626bf6bdap-15, -0x1.4bcc02a16fd01p-18,
      0x1.0f6c3c027c2aap-16,  0x1.487dce3cb7cf7p-16,  0x1.6aadae0f15cd3p-17,
      0x1.b18197533e83bp-21,  0x1.6cc00419a85f7p-27,  0x1.7833fa585e8aap-19,
      -0x1.a18ca652c934cp-20, -0x1.c6dfdc35eddebp-18, -0x1.a9297615a8166p-19,
      0x1.6939a05815562p-19,  0x1.5f30cc593c5d2p-19,  0x1.0d821ace19ca6p-24,
      -0x1.2f9df6f929751p-21, -0x1.5367e50c3d621p-23,
  };
};

// exp(-a^2/2) = 2^-k (1 + power), computed from a^2 as an exact sum high + low.
template <class Real>
struct Gaussian {
  Real lifted;  // 2^(lift - k)
  Real power;
};

template <class Real>
BRIDGE_HD Gaussian<Real> gaussian(Real square, Real square_low) {
  using Table = ErfTable<Real>;
  const Rounded<Real> rounded = round_product(Table::rate_high, square);
  const Real low = fma(Table::rate_low, square, Table::rate_high * square_low);
  const Real f = fma(-Table::rate_high, square, rounded.k) - low;
  return {rounded.lifted, exp2_minus_one_carefully(f)};
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
    using Tail = ErfTail<Real, Order>;
    const Real sum = fma(Table::slope, a, Table::offset);
    const Pair<Real> d{sum, fma(Table::slope, a, Table::offset - sum)};
    const Real rough = rough_reciprocal(d.high);
    if constexpr (Order == 0) {
      // g is a function of the rounded quotient and so compensates part of its rounding error.
      const Real quotient = divide(a, d, rough);
      const Real g = polynomial<Tail>(fma(quotient, Table::scale, Tail::shift));
      // (1 + g)(1 + power) - 1. The 1 is added last, so that the rounding of this part counts less.
      const Real excess = fma(bell.power, g, bell.power) + g;
      const Real tail = fma(quotient, excess, quotient) * bell.lifted;
      return fma(tail, -unlift, positive_part(h));
    } else {
      // gelu'(-a) = exp(-a^2/2) (R - a / sqrt(2 pi)), and gelu'(a) = 1 - gelu'(-a). R is summed
      // from 1/d, the rounding error of 1/d, and g/d, so that near the zero of the difference the
      // large parts cancel before anything else is rounded.
      const Real reciprocal = fma(rough, fma(-d.high, rough, Real(1)), rough);
      const Real missing = reciprocal * fma(-reciprocal, d.low, fma(-reciprocal, d.high, Real(1)));
      // t computed from 1/d instead of a/d, with a = (d - offset) / slope.
      constexpr Real falling = -Table::scale * Table::offset / Table::slope;
      constexpr Real start = Table::scale / Table::slope + Tail::shift;
      const Real t = fma(missing, falling, fma(reciprocal, falling, start));
      const Real large = fma(-a, Table::density, reciprocal);
      const Real change = large - reciprocal;
      const Real large_low = (reciprocal - (large - change)) + fma(-a, Table::density, -change);
      const Real low = fma(-a, Table::density_low, missing + large_low);
      const Real small = fma(reciprocal, polynomial<Tail>(t), low);
      const Real tail = (large + fma(large + small, bell.power, small)) * bell.lifted;
      const bool negative = is_negative(h);
      return fma(tail, negative ? unlift : -unlift, negative ? Real(0) : Real(1));
    }
  }
}

}  // namespace bridge::math::detail
