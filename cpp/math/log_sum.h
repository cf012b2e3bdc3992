// log(sum of e^x) along a row, and what that is beyond the largest x, for float and double: the
// terms are those of softmax with a scale of 1, e^(x - w log(2)) with w log(2) next to the largest.
// They are added as coarse and fine parts (softmax.h says why), in double as they are.
#pragma once

#include "math/logarithm.h"
#include "math/softmax.h"

namespace bridge::math {

namespace detail {

template <class Real>
BRIDGE_HD constexpr SoftmaxScale<Real> scale_of_one() {
  if constexpr (sizeof(Real) == sizeof(float)) {
    return {0.5f, 0x1.715476p+1f, 0x1.4ae0c0p-25f, -180 / 0x1.715476p+1f};
  } else {
    return {0.5, 0x1.71547652b82fep+1, 0x1.777d0ffda0d24p-55, -1140 / 0x1.71547652b82fep+1};
  }
}

template <class Real>
using ExactPrecision = std::conditional_t<sizeof(Real) == sizeof(float), Single, Double>;

template <class Real>
BRIDGE_HD SoftmaxShift<Real> shift_of(Real largest) {
  return softmax_shift<ExactPrecision<Real>>(Real(0.5) * largest, scale_of_one<Real>());
}

}  // namespace detail

// 2^lift e^(x - w log(2)), of a row whose largest x says its shift.
template <class Real>
BRIDGE_HD Real exp_shifted(Real x, const SoftmaxShift<Real>& row) {
  const auto scale = detail::scale_of_one<Real>();
  return softmax_power<detail::ExactPrecision<Real>>(softmax_key(x, scale), row, scale);
}

template <class Real>
BRIDGE_HD Real exp_shifted(Real x, Real largest) {
  return exp_shifted(x, detail::shift_of(largest));
}

// What a row's largest x says to parts_of_exp_shifted.
struct ShiftedRow {
  float shift;
  float magic;
  float floor;  // at smaller x less the shift the power is 0
  float none;   // and here it is 0 by itself
};

BRIDGE_HD ShiftedRow shifted_row(float largest) {
  constexpr float log_2 = 0x1.62e430p-1f, least = 0x1p-149f;
  const auto row = detail::shift_of(largest);
  // Half of -least is rounded to zero, which is not below a floor of zero.
  return {2 * row.shift, row.magic, row.floor == 0 ? -least : 2 * row.floor,
          (detail::ExponentTable<float>::magic - row.magic) * log_2};
}

BRIDGE_HD SoftmaxShift<double> shifted_row(double largest) { return detail::shift_of(largest); }

// The coarse and the fine part of exp_shifted, in fewer operations. Its x is not halved: where x
// less the shift is beyond all numbers for that, the power is 0 anyway. Nor are the power of the
// fraction and that of two multiplied before they are cut in parts: the product is exact.
BRIDGE_HD SoftmaxParts<float> parts_of_exp_shifted(float x, const ShiftedRow& row) {
  constexpr auto scale = detail::scale_of_one<float>();
  constexpr float rate = scale.rate / 2, rate_low = scale.rate_low / 2;
  constexpr float magic = coarse_magic<float>;
  const float distance = x - row.shift;
  const float t = distance < row.floor ? row.none : distance;
  const float shifted = fma(t, rate, row.magic);
  const float f = fma(t, rate_low, fma(t, rate, row.magic - shifted));
  const float power = detail::power_of_fraction(f);
  const float lifted = bit_cast<float>(to_bits(shifted) << Format<float>::mantissa_bits);
  const float coarse = fma(power, lifted, magic) - magic;
  return {coarse, fma(power, lifted, -coarse)};
}

BRIDGE_HD SoftmaxParts<double> parts_of_exp_shifted(double x, const SoftmaxShift<double>& row) {
  const double power = exp_shifted(x, row);
  return {power, power - power};
}

// The coarse part of a power; the fine one is what the power has beyond it.
template <class Real>
BRIDGE_HD Real exp_coarse(Real power) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    return softmax_term<Single>(power).coarse;
  } else {
    return power;
  }
}

// From the sums of the parts. The largest itself where it is infinite or NaN, and where it is
// alone: the logarithm would round what is exact.
template <class Real>
BRIDGE_HD Real log_sum(Real coarse, Real fine, Real largest) {
  constexpr int lift = detail::Exp2Table<Real>::lift;
  const auto row = detail::shift_of(largest);
  const Real total = coarse + fine;
  const Real added = total - coarse;
  const Real rest = (coarse - (total - added)) + (fine - added);
  const Real whole = detail::Exp2Table<Real>::magic - row.magic;
  const auto parts = detail::mantissa_of(total);
  const Real y = detail::logarithm_of(parts.n + (whole - Real(lift)), parts.m - 1, rest / total) +
                 2 * row.shift;
  const Real own = exp_shifted(largest, largest);
  const Real own_coarse = exp_coarse(own);
  const bool is_alone = coarse == own_coarse && fine == own - own_coarse;
  return absolute(largest) <= Format<Real>::largest && !is_alone ? y : largest;
}

// log(sum of e^(x - largest)), from the same: 0 where the largest is infinite or NaN. The power of
// the largest is taken from the sum, not 1 from what all come to: small ones keep their digits.
template <class Real>
BRIDGE_HD Real log_sum_rest(Real coarse, Real fine, Real largest) {
  const Real own = exp_shifted(largest, largest);
  const Real own_coarse = exp_coarse(own);
  const Real others = (coarse - own_coarse) + (fine - (own - own_coarse));
  return absolute(largest) <= Format<Real>::largest ? log1p(others / own) : Real(0);
}

}  // namespace bridge::math
