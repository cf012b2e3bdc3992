// Building blocks of the GELU forms: 2^-k and 2^f - 1 for a reduced argument, and the reciprocal.
#pragma once

#include "math/scalar.h"

namespace bridge::math {

// The results of the first step of a long function. A loop can take the first step for many numbers
// before the second, because a processor looks ahead only a limited distance along a chain of
// operations.
template <class Real>
struct Started {
  Real first, second;
};

namespace detail {

// Constants for each working precision; scripts/fit_gelu.py prints them.
template <class Real>
struct Exp2Table;

template <>
struct Exp2Table<float> {
  // 2^-k is stored as 2^(lift - k), which is normal where 2^-k is not. The last operation of every
  // function removes the factor 2^lift, so that a denormal result is rounded once.
  static constexpr int lift = 64;
  // magic - v has the exponent field of 2^(lift - k), k = round(v), in its low bits.
  static constexpr float magic = 0x1.8p23f + (lift + 127);
  static constexpr int degree = 5;
  // (2^f - 1) / f on [-1/2, 1/2]; error 2^-28.1 relative to 2^f.
  static constexpr float coefficients[degree + 1] = {
      0x1.62e430p-1f, 0x1.ebfbd8p-3f,  0x1.c6af78p-5f,
      0x1.3b30b0p-7f, 0x1.5f0a66p-10f, 0x1.3f906cp-13f,
  };
  static constexpr std::uint32_t reciprocal_seed = 0x7EF311C3u;
  static constexpr int newton_steps = 2;
};

template <>
struct Exp2Table<double> {
  static constexpr int lift = 512;
  static constexpr double magic = 0x1.8p52 + (lift + 1023);
  static constexpr int degree = 12;
  // Error 2^-55.5 relative to 2^f.
  static constexpr double coefficients[degree + 1] = {
      0x1.62e42fefa39efp-1,  0x1.ebfbdff82c58fp-3,  0x1.c6b08d704a0c0p-5,  0x1.3b2ab6fba4e7bp-7,
      0x1.5d87fe78a6732p-10, 0x1.430912f86ac5bp-13, 0x1.ffcbfc5889cb0p-17, 0x1.62c022460176ep-20,
      0x1.b5253d41fa178p-24, 0x1.e4cf03bac04a7p-28, 0x1.e8ca8dd465e8bp-32, 0x1.c4b5b04b1e8f9p-36,
      0x1.8219217906555p-40,
  };
  static constexpr std::uint64_t reciprocal_seed = 0x7FDE623822FC16E6u;
  static constexpr int newton_steps = 3;
};

// Horner's rule for Table::coefficients, lowest degree first.
template <class Table, int Next = 0, class Real>
BRIDGE_HD Real polynomial(Real x) {
  constexpr Real coefficient = Table::coefficients[Next];
  if constexpr (Next == Table::degree) {
    return coefficient;
  } else {
    return fma(x, polynomial<Table, Next + 1>(x), coefficient);
  }
}

// k = round(v) and 2^(lift - k), for v = multiplicand * multiplier >= 0. The product itself is
// never rounded.
template <class Real>
struct Rounded {
  Real k;
  Real lifted;  // 2^(lift - k)
};

template <class Real>
BRIDGE_HD Rounded<Real> round_product(Real multiplicand, Real multiplier) {
  using Table = Exp2Table<Real>;
  const Real shifted = fma(-multiplicand, multiplier, Table::magic);
  return {Table::magic - shifted, bit_cast<Real>(static_cast<typename Format<Real>::Bits>(
                                      to_bits(shifted) << Format<Real>::mantissa_bits))};
}

// 2^f - 1 for |f| up to slightly more than 1/2.
template <class Real>
BRIDGE_HD Real exp2_minus_one(Real f) {
  return f * polynomial<Exp2Table<Real>>(f);
}

// 2^f - 1 with half the rounding error, for one more operation: the sum of the small terms is added
// to the large term last.
template <class Real>
BRIDGE_HD Real exp2_minus_one_carefully(Real f) {
  using Table = Exp2Table<Real>;
  constexpr Real first = Table::coefficients[0];
  return fma(f, first, f * (f * polynomial<Table, 1>(f)));
}

// 1/d to about half of the working precision, for normal d > 0. The integer seed is within 5 %;
// each Newton step squares the error. This is a recursion because compilers do not vectorise around
// a loop.
template <class Real, int Steps = Exp2Table<Real>::newton_steps>
BRIDGE_HD Real rough_reciprocal(Real d) {
  if constexpr (Steps == 0) {
    return bit_cast<Real>(Exp2Table<Real>::reciprocal_seed - to_bits(d));
  } else {
    const Real r = rough_reciprocal<Real, Steps - 1>(d);
    return fma(r, fma(-d, r, Real(1)), r);
  }
}

// A number as the unevaluated sum high + low.
template <class Real>
struct Pair {
  Real high;
  Real low;
};

// n / d with an error little above the rounding of the result: one remainder step on a rough
// reciprocal of d.
template <class Real>
BRIDGE_HD Real divide(Real n, Pair<Real> d, Real rough) {
  const Real quotient = n * rough;
  const Real remainder = fma(-quotient, d.low, fma(-quotient, d.high, n));
  return fma(remainder, rough, quotient);
}

template <class Real>
BRIDGE_HD Real divide(Pair<Real> n, Pair<Real> d, Real rough) {
  const Real quotient = n.high * rough;
  const Real remainder = fma(-quotient, d.low, fma(-quotient, d.high, n.high) + n.low);
  return fma(remainder, rough, quotient);
}

}  // namespace detail
}  // namespace bridge::math
