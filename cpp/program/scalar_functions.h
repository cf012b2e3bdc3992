// Functions of the elementwise operations (elementwise.h) that cpp/math does not have.
#ifndef BRIDGE_PROGRAM_SCALAR_FUNCTIONS_H_
#define BRIDGE_PROGRAM_SCALAR_FUNCTIONS_H_

#include <type_traits>

#include "math/circular.h"
#include "math/convert.h"
#include "math/eight_bits.h"
#include "math/gelu.h"
#include "math/log_sum.h"
#include "math/logistic_for_16_bits.h"
#include "math/softmax.h"
#include "math/tanh_erf.h"

namespace bridge::interpreter {

// The precision of a function: `Single` for float. Doubles are always exact.
template <class Single, class Real>
using PrecisionOr = std::conditional_t<sizeof(Real) == sizeof(float), Single, math::Double>;

template <class Real>
BRIDGE_HD Real square_root(Real x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Real) == sizeof(float))
    return __fsqrt_rn(x);
  else
    return __dsqrt_rn(x);
#else
  if constexpr (sizeof(Real) == sizeof(float))
    return __builtin_sqrtf(x);
  else
    return __builtin_sqrt(x);
#endif
}

template <class Real>
BRIDGE_HD Real truth(bool condition) {
  return condition ? Real(1) : Real(0);
}

// Returns NaN if either is NaN, and `a` if they are equal.
template <class Real>
BRIDGE_HD Real smaller_of(Real a, Real b) {
  return ((a <= b) | (a != a)) ? a : b;
}
template <class Real>
BRIDGE_HD Real larger_of(Real a, Real b) {
  return ((a >= b) | (a != a)) ? a : b;
}

// Returns the largest power of two up to |x|; 0 for 0, infinity for infinity.
template <class Real>
BRIDGE_HD Real binade(Real x) {
  using Format = math::Format<Real>;
  constexpr typename Format::Bits kFraction =
      (typename Format::Bits{1} << Format::mantissa_bits) - 1;
  constexpr typename Format::Bits kExponent = ~kFraction & ~Format::sign_bit;
  // Denormal numbers are multiplied into the range of the others first. Both factors are exact.
  constexpr Real kUp = static_cast<Real>(typename Format::Bits{2} << Format::mantissa_bits);
  const Real size = math::absolute(x);
  const Real least = math::bit_cast<Real>(typename Format::Bits{1} << Format::mantissa_bits);
  const Real small = math::bit_cast<Real>(math::to_bits(size * kUp) & kExponent) * (Real(1) / kUp);
  const Real normal = math::bit_cast<Real>(math::to_bits(size) & kExponent);
  return x != x ? x : (size < least ? small : normal);
}

// Returns `x` rounded to T, as if it were read back from an array of T.
template <class T, class Real>
BRIDGE_HD Real rounded(Real x) {
  if constexpr (std::is_same_v<T, math::bfloat16> && sizeof(Real) == sizeof(float))
    return math::rounded_to_bfloat16(x);
  const T stored = math::round_to<T>(x);
  if constexpr (sizeof(Real) == sizeof(float))
    return math::to_float(stored);
  else
    return math::to_double(stored);
}

// Returns the reciprocal of a sum of powers, for 16-bit results; 0 for 0.
template <class Real>
BRIDGE_HD Real reciprocal_16(Real x) {
  if constexpr (sizeof(Real) == sizeof(float))
    return math::softmax_inverse(x, math::SoftmaxLine{0, 0, 0}).high;
  else
    return x == 0 ? Real(0) : Real(1) / x;
}

// Returns 2^f times the power of two whose exponent field is in the low bits of `shifted`
// (math/softmax.h).
template <class Real>
BRIDGE_HD Real exp2_lifted(Real f, Real shifted) {
  return shifted == shifted ? math::detail::lifted_power(f, shifted) : shifted;
}

// Returns e^(key - largest) up to a constant factor, for 16-bit results. `rate` is SoftmaxScale's
// in math/softmax.h.
template <class Precision, class Real>
BRIDGE_HD Real exp2_below_16(Real key, Real largest, Real rate) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    const auto row =
        math::softmax_shift<Precision>(largest, math::SoftmaxScale<float>{0, rate, 0, 0});
    return math::softmax_power<Precision>(key, row);
  } else {
    constexpr int whole_bits = math::detail::SoftmaxTableFor16Bits<Precision>::whole_bits;
    return math::exp2((key - largest) * (rate * math::power_of_two<double>(whole_bits - 1)));
  }
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_SCALAR_FUNCTIONS_H_
