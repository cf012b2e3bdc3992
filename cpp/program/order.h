// The total order in which a row's largest number is found, on CPU and CUDA.
#ifndef BRIDGE_PROGRAM_ORDER_H_
#define BRIDGE_PROGRAM_ORDER_H_

#include "math/scalar.h"

namespace bridge::interpreter {

// Returns an integer that orders numbers by their values, with +0 above -0 and NaN above all. Every
// NaN has the same integer.
template <class Real>
BRIDGE_HD typename math::Format<Real>::SignedBits order_of(Real x) {
  using Bits = typename math::Format<Real>::Bits;
  using SignedBits = typename math::Format<Real>::SignedBits;
  constexpr Bits magnitude = ~math::Format<Real>::sign_bit;
  const Bits bits = math::to_bits(x);
  const Bits ordered = math::is_negative(x) ? bits ^ magnitude : bits;
  return static_cast<SignedBits>(x != x ? math::Format<Real>::canonical_nan : ordered);
}

template <class Real>
BRIDGE_HD Real number_of(typename math::Format<Real>::SignedBits order) {
  using Bits = typename math::Format<Real>::Bits;
  const Bits bits = static_cast<Bits>(order);
  return math::bit_cast<Real>(order < 0 ? bits ^ ~math::Format<Real>::sign_bit : bits);
}

// Returns the order of -infinity, the largest of no numbers.
template <class Real>
BRIDGE_HD typename math::Format<Real>::SignedBits lowest_order() {
  return order_of(Real(-__builtin_inf()));
}

// Returns the larger number in this order.
template <class Real>
BRIDGE_HD Real larger_number(Real a, Real b) {
#if defined(__CUDA_ARCH__)
  // A GPU's maximum instruction orders floats in the same way.
  if constexpr (sizeof(Real) == sizeof(float)) return math::max_keep_nan(a, b);
#endif
  const auto first = order_of(a), second = order_of(b);
  return number_of<Real>(first > second ? first : second);
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_ORDER_H_
