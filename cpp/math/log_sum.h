// log(sum of e^x) along a row, and what that is beyond the largest x, for float and double. Terms
// are 2^lift e^(x - w log(2)), with w log(2) next to the largest x, of the x that are less than it;
// those that equal it are counted. So the sum keeps its digits however small it is beside the
// largest one's power, and a row of one large number and thousands of small ones rounds no worse
// than another.
//
// Of x that have 16 bits, or are such times a number, powers take fewer operations: in float they
// are exact to 2^-23.6 and |x - largest| 2^-26, but for a factor that all have in common.
#pragma once

#include <type_traits>

#include "math/exponential.h"
#include "math/logarithm.h"

namespace bridge::math {

// What a row's largest x says of its terms.
template <class Real>
struct LogSumRow {
  Real shift;  // what x are measured from
  Real rate;
  Real magic;  // leaves lift + n - w in the low bits of its sum with the exponent of 2^n
  Real floor;  // x less the shift are held above it: smaller terms are lost beside the largest's
};

namespace detail {

template <class Real>
struct LogSumTable;

template <>
struct LogSumTable<float> {
  static constexpr float bound = 124.0f, bound_of_exp2 = 180.0f;
};

template <>
struct LogSumTable<double> {
  static constexpr double bound = 790.0, bound_of_exp2 = 1140.0;
};

// 2^f on [-1/2, 1/2], 2^-23.6, but for a factor of 1 - 2^-23.7; scripts/fit_for_16_bits.py.
struct LogSumPowerOf16Bits {
  static constexpr int degree = 4;
  static constexpr float coefficients[degree + 1] = {
      0x1.62e428p-1f, 0x1.ebf918p-3f, 0x1.c6b662p-5f, 0x1.3d0b2cp-7f, 0x1.5c2a92p-10f,
  };
  // log of that factor, and of what lacks where the rate has no low part, for each x.
  static constexpr float lost = 0x1.3ab804p-24f, lost_of_x = 0x1.cab1b6p-27f;
};

// 2^lift e^(x - w log(2)).
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_power(Real x, const LogSumRow<Real>& row) {
  constexpr bool kIsShort = is_short<kIs16, Real>;
  using Table = std::conditional_t<kIsShort, LogSumPowerOf16Bits, Exp2Table<Real>>;
  const Real distance = kIsShort ? x : x - row.shift;
  const Real held = larger_but_nan(distance, row.floor);
  const Real shifted = fma(held, row.rate, row.magic);
  const Real high = fma(held, row.rate, row.magic - shifted);
  const Real f = kIsShort ? high : fma(held, ExponentTable<Real>::log2e_low, high);
  const Real power = fma(f, polynomial<Table>(f), Real(1));
  const auto exponent = to_bits(shifted) << Format<Real>::mantissa_bits;
  return bit_cast<Real>(static_cast<typename Format<Real>::Bits>(to_bits(power) + exponent));
}

// The sum of the terms over the power of the largest.
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_beside(Real sum, Real largest, const LogSumRow<Real>& row) {
  return row.rate == 0 ? Real(0) : sum / log_sum_power<kIs16>(largest, row);
}

}  // namespace detail

// Nothing is subtracted from moderate x: of equal ones the rounding would be the same. Of others
// every x whose power counts lies within a factor of two of the largest, and the difference is
// exact. Of 16 bits, those beyond 2^21 that differ do so by a thousand, so that only equal ones
// count; the magic number takes no larger exponents. There all others have the least power.
template <bool kIs16, class Real>
BRIDGE_HD LogSumRow<Real> log_sum_row(Real largest) {
  using Table = detail::LogSumTable<Real>;
  constexpr bool kIsShort = detail::is_short<kIs16, Real>;
  constexpr Real rate = detail::ExponentTable<Real>::log2e;
  constexpr Real magic = detail::ExponentTable<Real>::magic;
  constexpr Real lifting = magic + detail::Exp2Table<Real>::lift;
  const bool is_usual = absolute(largest) <= power_of_two<Real>(kIsShort ? 21 : 9);
  const Real whole = fma(largest, rate, magic) - magic;
  if constexpr (kIsShort) {
    return {Real(0), is_usual ? rate : Real(0), lifting - (is_usual ? whole : Table::bound_of_exp2),
            is_usual ? largest - Table::bound : -Format<Real>::largest};
  } else {
    return {is_usual ? Real(0) : largest, rate, lifting - (is_usual ? whole : Real(0)),
            (is_usual ? largest : Real(0)) - Table::bound};
  }
}

// The term of an x that is less than the largest, or -infinity.
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_term_of_less(Real x, const LogSumRow<Real>& row) {
  return detail::log_sum_power<kIs16>(x, row);
}

// The term of any x. That of the largest is -infinity's, of which no result shows anything.
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_term(Real x, Real largest, const LogSumRow<Real>& row) {
  return log_sum_term_of_less<kIs16>(x < largest ? x : Real(-__builtin_inf()), row);
}

template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_term(Real x, Real largest) {
  return log_sum_term<kIs16>(x, largest, log_sum_row<kIs16>(largest));
}

// log(sum of e^(x - largest)) from the sum of the terms and how many x are the largest: 0 where
// that is infinite or NaN.
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_rest(Real sum, Real count, Real largest) {
  const Real beside = detail::log_sum_beside<kIs16>(sum, largest, log_sum_row<kIs16>(largest));
  return absolute(largest) <= Format<Real>::largest ? log1p((count - 1) + beside) : Real(0);
}

// log(sum of e^x) from the same: the largest itself where it is infinite or NaN, or alone. It is
// not the sum of both, which may cancel.
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum(Real sum, Real count, Real largest) {
  using Short = detail::LogSumPowerOf16Bits;
  const LogSumRow<Real> row = log_sum_row<kIs16>(largest);
  const Real own = detail::log_sum_power<kIs16>(largest, row);
  const Real head = count * own;
  const Real total = head + sum;
  const Real added = total - head;
  const Real rest = (head - (total - added)) + (sum - added) + fma(count, own, -head);
  Real correction = rest / total;
  if constexpr (detail::is_short<kIs16, Real>)
    correction += fma(largest, Short::lost_of_x, Short::lost);
  const auto parts = detail::mantissa_of(total);
  const Real n = parts.n - (row.magic - detail::ExponentTable<Real>::magic);
  const Real y = detail::logarithm_of(n, parts.m - 1, correction) + row.shift;
  const bool is_alone = count == 1 && detail::log_sum_beside<kIs16>(sum, largest, row) == 0;
  const bool is_finite = absolute(largest) <= Format<Real>::largest;
  const Real beyond = is_finite && row.rate == 0 ? largest + log1p(count - 1) : largest;
  return is_finite && row.rate != 0 && !is_alone ? y : beyond;
}

}  // namespace bridge::math
