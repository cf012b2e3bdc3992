// log(sum of e^x) along a row, for float and double, from the largest x of the row: the terms are
// those of softmax with a scale of 1, e^(x - w log(2)) with w log(2) next to the largest. They are
// added as coarse and fine parts (softmax.h says why), in double as they are.
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

}  // namespace bridge::math
