// log(sum of e^x) along a row, and its excess over the row's largest x, for float and double. An x
// below the largest adds the term 2^lift e^(x - w log(2)), with w log(2) close to the largest x.
// Elements equal to the largest are counted instead. So the sum keeps its digits however small it
// is beside the power of the largest x, and a row of one large number and thousands of small ones
// has no larger rounding error than another row.
//
// For x of 16 bits, or such x times a number, powers take fewer operations. In float they are then
// exact to 2^-23.6 + |x - largest| 2^-26, apart from a common factor.
#pragma once

#include <type_traits>

#include "math/exponential.h"
#include "math/logarithm.h"

namespace bridge::math {

// The constants of a row, which follow from its largest x.
template <class Real>
struct LogSumRow {
  Real shift;  // the number that x are measured from
  Real rate;
  Real magic;  // its sum with the exponent of 2^n has lift + n - w in its low bits
  Real floor;  // least value of x - shift: smaller terms vanish beside the largest x's power
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

// 2^f (1 - 2^-23.7) on [-1/2, 1/2], error 2^-23.6; scripts/fit_for_16_bits.py prints the constants.
struct LogSumPowerOf16Bits {
  static constexpr int degree = 4;
  static constexpr float coefficients[degree + 1] = {
      0x1.62e428p-1f, 0x1.ebf918p-3f, 0x1.c6b662p-5f, 0x1.3d0b2cp-7f, 0x1.5c2a92p-10f,
  };
  // Corrections of the logarithm: for that factor, and, per unit of x, for the low part of log2(e),
  // which the rate lacks.
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

// The sum of the terms divided by the power of the largest x.
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_beside(Real sum, Real largest, const LogSumRow<Real>& row) {
  return row.rate == 0 ? Real(0) : sum / log_sum_power<kIs16>(largest, row);
}

}  // namespace detail

// Moderate x have shift 0, because the rounding of x - shift would be the same for all equal x and
// add up. For larger ones, every x whose power counts lies within a factor of two of the largest,
// and the difference is exact. With 16 bits, numbers beyond 2^21 that differ do so by a thousand,
// so that only those equal to the largest count; the magic number takes no larger exponents. All
// others then get the least power.
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

// The term of an x that is less than the largest, or is -infinity.
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_term_of_less(Real x, const LogSumRow<Real>& row) {
  return detail::log_sum_power<kIs16>(x, row);
}

// The term of any x. An x equal to the largest gets the term of -infinity, which is too small to
// show in a result.
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_term(Real x, Real largest, const LogSumRow<Real>& row) {
  return log_sum_term_of_less<kIs16>(x < largest ? x : Real(-__builtin_inf()), row);
}

template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_term(Real x, Real largest) {
  return log_sum_term<kIs16>(x, largest, log_sum_row<kIs16>(largest));
}

// log(sum of e^(x - largest)), from the sum of the terms and the number of x equal to the largest;
// 0 if the largest is infinite or NaN.
template <bool kIs16, class Real>
BRIDGE_HD Real log_sum_rest(Real sum, Real count, Real largest) {
  const Real beside = detail::log_sum_beside<kIs16>(sum, largest, log_sum_row<kIs16>(largest));
  return absolute(largest) <= Format<Real>::largest ? log1p((count - 1) + beside) : Real(0);
}

// log(sum of e^x), from the same arguments: the largest x itself if it is infinite, NaN or alone.
// Adding log_sum_rest to the largest x is no substitute, because the two may cancel.
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
