// e^x and functions built on it, for float and double. Errors are at most 2 units in the last place
// everywhere (docs/numerics.md); a subnormal result is rounded once; NaN gives NaN. There are no
// branches, so that loops around these functions are vectorised.
#pragma once

#include "math/exp2.h"
#include "math/gelu_erf.h"

namespace bridge::math {

namespace detail {

// True for float arithmetic with results of 16 bits, which need less accuracy than float has.
template <bool kIs16, class Real>
constexpr bool is_short = kIs16 && sizeof(Real) == sizeof(float);

// log2(e) and log(2) as high + low. log2_high has enough trailing zero bits for its product with an
// exponent to be exact. Beyond +-bound every result has overflowed, or underflowed to 0 or -1.
template <class Real>
struct ExponentTable;

template <>
struct ExponentTable<float> {
  static constexpr float magic = 0x1.8p23f;
  static constexpr float log2e = 0x1.715476p+0f, log2e_low = 0x1.4ae0c0p-26f;
  static constexpr float log2_high = 0x1.6300p-1f, log2_low = -0x1.bd0106p-13f;
  static constexpr float bound = 120.0f;
  static constexpr float bound_of_exp2 = 180.0f;
};

template <>
struct ExponentTable<double> {
  static constexpr double magic = 0x1.8p52;
  static constexpr double log2e = 0x1.71547652b82fep+0, log2e_low = 0x1.777d0ffda0d24p-56;
  static constexpr double log2_high = 0x1.62e42fefa4000p-1, log2_low = -0x1.8432a1b0e2634p-43;
  static constexpr double bound = 800.0;
  static constexpr double bound_of_exp2 = 1200.0;
};

// 2^n as two normal factors, for |n| below twice the largest exponent. Multiplying by the first is
// exact; multiplying by the second overflows or rounds into the subnormals, once.
template <class Real>
struct PowerOfTwo {
  Real first;
  Real second;
};

// `shifted` is ExponentTable<Real>::magic + n.
template <class Real>
BRIDGE_HD PowerOfTwo<Real> power_of_two_from(Real shifted) {
  using Bits = typename Format<Real>::Bits;
  constexpr int mantissa = Format<Real>::mantissa_bits;
  constexpr Bits bias = Format<Real>::exponent_bias;
  // Unsigned, because n is arbitrary for a NaN, and more arithmetic on it may overflow.
  const Bits n = to_bits(shifted) - to_bits(ExponentTable<Real>::magic);
  // n / 2, rounded down. The offset makes the shifted number non-negative: SSE2 and AVX2 have no
  // arithmetic shift of 64-bit integers.
  constexpr Bits offset = Bits(1) << 12;
  const Bits half = ((n + offset) >> 1) - offset / 2;
  return {bit_cast<Real>((half + bias) << mantissa), bit_cast<Real>((n - half + bias) << mantissa)};
}

// 2^(n + Lift), which must be a normal number.
template <int Lift, class Real>
BRIDGE_HD Real normal_power_from(Real shifted) {
  using Bits = typename Format<Real>::Bits;
  constexpr Bits bias = Format<Real>::exponent_bias + Lift;
  const Bits n = to_bits(shifted) - to_bits(ExponentTable<Real>::magic);
  return bit_cast<Real>((n + bias) << Format<Real>::mantissa_bits);
}

template <class Real>
BRIDGE_HD Real within(Real bound, Real x) {
  return min_keep_nan(bound, max_keep_nan(-bound, x));
}

// x log2(e) = n + f; `shifted` is a magic number plus n.
template <class Real>
struct Exponent {
  Real shifted;
  Real f;
};

// `held` is x clamped to the bound.
template <class Real>
BRIDGE_HD Exponent<Real> exponent_of(Real held, Real magic = ExponentTable<Real>::magic) {
  using Table = ExponentTable<Real>;
  const Real shifted = fma(held, Table::log2e, magic);
  const Real high = fma(held, Table::log2e, magic - shifted);
  return {shifted, fma(held, Table::log2e_low, high)};
}

// 2^f, with an error little above one rounding.
template <class Real>
BRIDGE_HD Real power_of_fraction(Real f) {
  return fma(f, polynomial<Exp2Table<Real>>(f), Real(1));
}

// 2^f / factor on [-1/2, 1/2], error 2^-18.6; scripts/fit_for_16_bits.py prints the constants.
struct Exp2TableFor16Bits {
  static constexpr int degree = 3;
  static constexpr float coefficients[degree + 1] = {
      0x1.62e0eep-1f,
      0x1.ec06f2p-3f,
      0x1.ca1454p-5f,
      0x1.3997f8p-7f,
  };
  static constexpr float factor = 1.0f - 0x1.8c618ep-21f;
};

// 2^lift top e^-size for size from 0 to the bound, with one rounding more than 2^f - 1. The result
// is a normal number unless it underflows to 0 without the factor 2^lift.
template <class Real>
BRIDGE_HD Real lifted_decay(Real top, Real size) {
  const auto e = exponent_of(-size);
  const Real power = exp2_minus_one(e.f);
  return fma(top, power, top) * normal_power_from<Exp2Table<Real>::lift>(e.shifted);
}

// top / (1 + power), for a power from 0 to 1.
template <class Real>
BRIDGE_HD Real over_one_and(Real top, Real power) {
  const Real d = 1 + power;
  return divide(top, Pair<Real>{d, power - (d - 1)}, rough_reciprocal(d));
}

}  // namespace detail

template <class Real>
BRIDGE_HD Real exp(Real x) {
  const auto e = detail::exponent_of(detail::within(detail::ExponentTable<Real>::bound, x));
  const auto scale = detail::power_of_two_from(e.shifted);
  return (detail::power_of_fraction(e.f) * scale.first) * scale.second;
}

// The bits of exp for x up to 40 in fewer operations; a larger x gives e^40. With kIs16 and float:
// e^x with error 2^-17.8, for x up to 40.
template <bool kIs16 = false, class Real>
BRIDGE_HD Real exp_low(Real x) {
  using Powers = detail::Exp2Table<Real>;
  using Table = detail::ExponentTable<Real>;
  const Real above = max_keep_nan(-Table::bound, x);
  Real shifted, power, factor = power_of_two<Real>(-Powers::lift);
  if constexpr (detail::is_short<kIs16, Real>) {
    using Short = detail::Exp2TableFor16Bits;
    shifted = fma(above, Table::log2e, Powers::magic);
    const Real f = fma(above, Table::log2e, Powers::magic - shifted);
    power = fma(f, detail::polynomial<Short>(f), Real(1));
    factor *= Short::factor;
  } else {
    const auto e = detail::exponent_of(min_keep_nan(Real(40), above), Powers::magic);
    shifted = e.shifted;
    power = detail::power_of_fraction(e.f);
  }
  // The low bits of `shifted` are the exponent field of 2^(n + lift), a normal number.
  const auto bits = to_bits(shifted) << Format<Real>::mantissa_bits;
  const Real lifted = bit_cast<Real>(static_cast<typename Format<Real>::Bits>(bits));
  return (power * lifted) * factor;
}

template <class Real>
BRIDGE_HD Real exp2(Real x) {
  using Table = detail::ExponentTable<Real>;
  const Real held = detail::within(Table::bound_of_exp2, x);
  const Real shifted = held + Table::magic;
  const auto scale = detail::power_of_two_from(shifted);
  const Real f = held - (shifted - Table::magic);
  return (detail::power_of_fraction(f) * scale.first) * scale.second;
}

// e^x - 1 = 2^n (2^f - 1) + (2^n - 1).
template <class Real>
BRIDGE_HD Real expm1(Real x) {
  using Table = detail::ExponentTable<Real>;
  using Powers = detail::Exp2Table<Real>;
  constexpr Real first = Powers::coefficients[0];
  const Real held = detail::within(Table::bound, x);
  const Real shifted = fma(held, Table::log2e, Table::magic);
  const Real n = shifted - Table::magic;
  const Real f = fma(held, Table::log2e, -n);
  // If n is 0 the result may be small, so the rounding error of f matters.
  const Real lost = n == 0 ? fma(held, Table::log2e, -f) : Real(0);
  const Real rest = fma(held, Table::log2e_low, lost);
  const auto scale = detail::power_of_two_from(shifted);
  const Real small = f * (f * detail::polynomial<Powers, 1>(f));
  const Real rough = fma(f, first, small);
  // 2^f - 1 as power + low. Near x = log(2)/2, where n is 1, the rounding error of a single number
  // would count twice.
  const Real added = fma(rest * first, 1 + rough, small);
  const Real high = f * first;
  const Real power = high + added;
  const Real low = (added - (power - high)) + fma(f, first, -high);
  const Real whole = scale.first * scale.second;
  const Real sum = fma(whole, low, fma(whole, power, whole - 1));
  // For large x, where 2^n alone may overflow, the -1 is far below the last place.
  const Real large = ((1 + power) * scale.first) * scale.second;
  const Real near_zero = x == 0 ? x : sum;  // the sum would lose the sign of a zero
  return x > Real(Format<Real>::mantissa_bits + 8) ? large : near_zero;
}

// The first step of sigmoid and silu: 2^lift e^-|x|, and the numerator of silu.
template <class Real>
BRIDGE_HD Started<Real> start_logistic(Real x) {
  const Real size = min_keep_nan(detail::ExponentTable<Real>::bound, absolute(x));
  const Real lifted = detail::lifted_decay(Real(1), size);
  const bool negative = is_negative(x);
  return {lifted, negative ? detail::lifted_decay(-size, size) : x};
}

// 1 / (1 + e^-x), computed from e^-|x|, so that x and -x share the first step. A derivative uses
// sigmoid(x), sigmoid(-x) and silu(x); their common parts are written alike, so that the compiler
// computes them once.
template <class Real>
BRIDGE_HD Real sigmoid(Real x, Started<Real> start) {
  constexpr Real unlift = power_of_two<Real>(-detail::Exp2Table<Real>::lift);
  const Real lifted = start.first;
  const bool negative = is_negative(x);
  const Real top = negative ? lifted : Real(1);
  return detail::over_one_and(top, lifted * unlift) * (negative ? unlift : Real(1));
}

template <class Real>
BRIDGE_HD Real sigmoid(Real x) {
  return sigmoid(x, start_logistic(x));
}

// x / (1 + e^-x); -0 at -infinity.
template <class Real>
BRIDGE_HD Real silu(Real x, Started<Real> start) {
  constexpr Real unlift = power_of_two<Real>(-detail::Exp2Table<Real>::lift);
  const Real lifted = start.first, top = start.second;
  const bool negative = is_negative(x);
  const Real y = detail::over_one_and(top, lifted * unlift);
  // Large numbers and infinity are their own result, and zeros keep their sign.
  return (x > 40 || top == 0 ? top : y) * (negative ? unlift : Real(1));
}

template <class Real>
BRIDGE_HD Real silu(Real x) {
  return silu(x, start_logistic(x));
}

// e^(-x^2), or e^(-x^2/2) if Halved, computed from the unrounded square.
template <bool Halved, class Real>
BRIDGE_HD Real gauss(Real x) {
  constexpr Real factor = Halved ? 1 : 2;
  constexpr Real bound =
      sizeof(Real) == sizeof(float) ? (Halved ? 15.0 : 10.5) : (Halved ? 39.5 : 27.9);
  constexpr Real unlift = power_of_two<Real>(-detail::Exp2Table<Real>::lift);
  const Real size = min_keep_nan(bound, absolute(x));
  const Real square = size * size;
  const Real low = fma(size, size, -square);
  const auto bell = detail::gaussian(factor * square, factor * low);
  return ((1 + bell.power) * bell.lifted) * unlift;
}

}  // namespace bridge::math
