// tanh and erf for float and double, with errors of at most 2 units in the last place: an odd
// polynomial near 0, and 1 minus the distance from 1 beyond.
#pragma once

#include "math/exponential.h"

namespace bridge::math {

namespace detail {

// (tanh(x) / x - 1) / w in powers of w = x^2, for |x| below 0.625.
template <class Real>
struct TanhTable;

// Error 2^-32.4 relative to tanh(x).
template <>
struct TanhTable<float> {
  static constexpr int degree = 5;
  static constexpr float coefficients[degree + 1] = {
      -0x1.555554p-2f, 0x1.11107ap-3f,  -0x1.b9f190p-5f,
      0x1.63a616p-6f,  -0x1.0c64d2p-7f, 0x1.1a45cap-9f,
  };
};

// Error 2^-56.7 relative to tanh(x).
template <>
struct TanhTable<double> {
  static constexpr int degree = 13;
  static constexpr double coefficients[degree + 1] = {
      -0x1.5555555555555p-2,  0x1.1111111111111p-3,  -0x1.ba1ba1ba1b99bp-5,  0x1.664f4882bcedap-6,
      -0x1.226e355d4fe31p-7,  0x1.d6d3d085a77dap-9,  -0x1.7da35ab78fb03p-10, 0x1.355774fd6397bp-11,
      -0x1.f56beacd843e6p-13, 0x1.95dea8c30df35p-14, -0x1.45784f033d4b9p-15, 0x1.f1b59ea7fc191p-17,
      -0x1.402a50ae5478dp-18, 0x1.ec64d0ae70e69p-21,
  };
};

// (erf(x) / x - 2 / sqrt(pi)) / w in powers of w = x^2, for |x| below 1.
template <class Real>
struct ErfNearZeroTable;

// Error 2^-32.6 relative to erf(x).
template <>
struct ErfNearZeroTable<float> {
  static constexpr int degree = 7;
  static constexpr float coefficients[degree + 1] = {
      -0x1.812746p-2f,  0x1.ce2eecp-4f,  -0x1.b826d8p-6f,  0x1.56049ap-8f,
      -0x1.bab7f8p-11f, 0x1.c7dfd6p-14f, -0x1.fd0caap-18f, -0x1.e059fep-22f,
  };
};

// Error 2^-56.3 relative to erf(x).
template <>
struct ErfNearZeroTable<double> {
  static constexpr int degree = 15;
  static constexpr double coefficients[degree + 1] = {
      -0x1.812746b0379e7p-2,  0x1.ce2f21a042be2p-4,  -0x1.b82ce31288b51p-6,  0x1.565bcd0e6a53fp-8,
      -0x1.c02db40040b7fp-11, 0x1.f9a326f9b8780p-14, -0x1.f4d25c3e0466ap-17, 0x1.b9e6c9db370fbp-20,
      -0x1.5f742ea388b1bp-23, 0x1.fcc56cdce17aep-27, -0x1.51d6cb74180e8p-30, 0x1.9e644b69f51ccp-34,
      -0x1.d7dd4558a83f2p-38, 0x1.f1edf89864982p-42, -0x1.d24e88793232dp-46, 0x1.2f54cb59a95f5p-50,
  };
};

// e^x for x from -80 to -0.35, where 2^n is normal.
template <class Real>
BRIDGE_HD Real exp_of_moderate(Real x) {
  const auto e = exponent_of(x);
  return power_of_fraction(e.f) * normal_power_from<0>(e.shifted);
}

template <class Real>
BRIDGE_HD Real with_sign_of(Real x, Real size) {
  return bit_cast<Real>(to_bits(size) | (to_bits(x) & Format<Real>::sign_bit));
}

}  // namespace detail

template <class Real>
BRIDGE_HD Real tanh(Real x) {
  const Real size = absolute(x);
  const Real square = size * size;
  const Real near_zero =
      fma(size * square, detail::polynomial<detail::TanhTable<Real>>(square), size);
  constexpr Real bound = sizeof(Real) == sizeof(float) ? 20 : 40;  // the result is 1 from here on
  const Real power = detail::exp_of_moderate(-2 * min_keep_nan(bound, size));
  const Real beyond = 1 - 2 * power / (1 + power);
  return detail::with_sign_of(x, size < Real(0.625) ? near_zero : beyond);
}

// For |x| above 1, the distance of |erf(x)| from 1 is 2 Q(sqrt(2) |x|), where Q(a) = e^(-a^2/2) (1
// + g) / d as in gelu_erf.h.
template <class Real>
BRIDGE_HD Real erf(Real x) {
  using Tail = detail::ErfTail<Real, 0>;
  using Table = detail::ErfTable<Real>;
  constexpr bool narrow = sizeof(Real) == sizeof(float);
  constexpr Real first = narrow ? 0x1.20dd76p+0 : 0x1.20dd750429b6dp+0;
  constexpr Real first_low = narrow ? -0x1.f7ac92p-25 : 0x1.1ae3a914fed80p-56;
  constexpr Real root_two = 0x1.6a09e667f3bcdp+0;
  const Real size = min_keep_nan(Real(narrow ? 10.0 : 27.0), absolute(x));
  const Real square = size * size;
  const Real near_zero = fma(
      size, first,
      size * fma(square, detail::polynomial<detail::ErfNearZeroTable<Real>>(square), first_low));
  const Real a = root_two * size;
  const Real d = fma(Table::slope, a, Table::offset);
  const Real g = detail::polynomial<Tail>(fma(a / d, Table::scale, Tail::shift));
  const Real missing = 2 * gauss<false>(size) * (1 + g) / d;
  return detail::with_sign_of(x, size < 1 ? near_zero : 1 - missing);
}

}  // namespace bridge::math
