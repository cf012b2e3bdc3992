// The elementwise operations of a program as functions. The interpreter's loops over registers,
// generated programs and the CUDA kernels call them.
#ifndef BRIDGE_INTERPRETER_ELEMENTWISE_H_
#define BRIDGE_INTERPRETER_ELEMENTWISE_H_

#include <type_traits>

#include "interpreter/program.h"
#include "math/convert.h"
#include "math/gelu.h"
#include "math/log_sum.h"
#include "math/logistic_for_16_bits.h"
#include "math/softmax.h"
#include "math/tanh_erf.h"

namespace bridge::interpreter {

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
  return (a <= b) | (a != a) ? a : b;
}
template <class Real>
BRIDGE_HD Real larger_of(Real a, Real b) {
  return (a >= b) | (a != a) ? a : b;
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

// The operations for results of a 16-bit type. Doubles take the exact operations.
template <int32_t kOperation, class Real>
BRIDGE_HD Real compute_for_16_bits(Real a) {
  constexpr int32_t count = kSigmoidBfloat16 - kSigmoidFloat16;
  static_assert(kReciprocal16 - kSigmoidBfloat16 == count,
                "both types have the same operations, in the same order");
  constexpr bool is_float16 = kOperation < kSigmoidBfloat16;
  using Rough = std::conditional_t<is_float16, math::SingleForFloat16, math::SingleForBfloat16>;
  using Precision = std::conditional_t<sizeof(Real) == sizeof(float), Rough, math::Double>;
  using math::GeluForm;
  switch (is_float16 ? kOperation : kOperation - count) {  // a constant
    case kSigmoidFloat16:
      return math::sigmoid_for_16_bits<Precision>(a);
    case kSiluFloat16:
      return math::silu_for_16_bits<Precision>(a);
    case kSiluSlopeFloat16:
      return math::silu_slope_for_16_bits<Precision>(a);
    case kGeluTanhFloat16:
      return math::gelu<Precision, GeluForm::tanh, 0>(a);
    case kGeluTanh1Float16:
      return math::gelu<Precision, GeluForm::tanh, 1>(a);
    case kGeluErfFloat16:
      return math::gelu<Precision, GeluForm::erf, 0>(a);
    case kGeluErf1Float16:
      return math::gelu<Precision, GeluForm::erf, 1>(a);
    case kGeluSigmoidFloat16:
      return math::gelu<Precision, GeluForm::sigmoid, 0>(a);
    default:
      return math::gelu<Precision, GeluForm::sigmoid, 1>(a);
  }
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

// The first half of a function that one loop may start for many elements before another finishes
// them. Several functions have the same first half; math::Started holds its values.
template <int32_t kOperation, class Real>
BRIDGE_HD math::Started<Real> start(Real a) {
  using math::GeluForm;
  switch (kOperation) {  // a constant
    case kGeluTanh:
      return math::detail::start_gelu<GeluForm::tanh, 0>(a);
    case kGeluTanh1:
    case kGeluTanh2:
      return math::detail::start_gelu<GeluForm::tanh, 1>(a);
    case kGeluSigmoid:
      return math::detail::start_gelu<GeluForm::sigmoid, 0>(a);
    case kGeluSigmoid1:
    case kGeluSigmoid2:
      return math::detail::start_gelu<GeluForm::sigmoid, 1>(a);
    default:
      return math::start_logistic(a);
  }
}

template <int32_t kOperation, class Real>
BRIDGE_HD Real finish(Real a, math::Started<Real> started) {
  using math::GeluForm;
  switch (kOperation) {  // a constant
    case kGeluTanh:
      return math::detail::finish_gelu<GeluForm::tanh, 0>(a, started);
    case kGeluTanh1:
      return math::detail::finish_gelu<GeluForm::tanh, 1>(a, started);
    case kGeluTanh2:
      return math::detail::finish_gelu<GeluForm::tanh, 2>(a, started);
    case kGeluSigmoid:
      return math::detail::finish_gelu<GeluForm::sigmoid, 0>(a, started);
    case kGeluSigmoid1:
      return math::detail::finish_gelu<GeluForm::sigmoid, 1>(a, started);
    case kGeluSigmoid2:
      return math::detail::finish_gelu<GeluForm::sigmoid, 2>(a, started);
    case kSigmoid:
      return math::sigmoid(a, started);
    default:
      return math::silu(a, started);
  }
}

template <int32_t kOperation, class Real>
BRIDGE_HD Real compute(Real a, Real b, Real c) {
  using Precision = std::conditional_t<sizeof(Real) == sizeof(float), math::Single, math::Double>;
  using math::GeluForm;
  (void)b;
  (void)c;
  switch (kOperation) {  // a constant
    case kNegative:
      return math::negated(a);
    case kAbsolute:
      return math::absolute(a);
    case kSquareRoot:
      return square_root(a);
    case kReciprocalRoot:
      return Real(1) / square_root(a);
    case kExp:
      return math::exp(a);
    case kExp2:
      return math::exp2(a);
    case kExpm1:
      return math::expm1(a);
    case kLog:
      return math::log(a);
    case kLog1p:
      return math::log1p(a);
    case kTanh:
      return math::tanh(a);
    case kSigmoid:
      return math::sigmoid(a);
    case kSilu:
      return math::silu(a);
    case kSoftplus:
      return math::softplus(a);
    case kErf:
      return math::erf(a);
    case kGauss:
      return math::gauss<false>(a);
    case kGaussHalved:
      return math::gauss<true>(a);
    case kGeluTanh:
      return math::gelu<Precision, GeluForm::tanh, 0>(a);
    case kGeluTanh1:
      return math::gelu<Precision, GeluForm::tanh, 1>(a);
    case kGeluTanh2:
      return math::gelu<Precision, GeluForm::tanh, 2>(a);
    case kGeluErf:
      return math::gelu<Precision, GeluForm::erf, 0>(a);
    case kGeluErf1:
      return math::gelu<Precision, GeluForm::erf, 1>(a);
    case kGeluErf2:
      return math::gelu<Precision, GeluForm::erf, 2>(a);
    case kGeluSigmoid:
      return math::gelu<Precision, GeluForm::sigmoid, 0>(a);
    case kGeluSigmoid1:
      return math::gelu<Precision, GeluForm::sigmoid, 1>(a);
    case kGeluSigmoid2:
      return math::gelu<Precision, GeluForm::sigmoid, 2>(a);
    case kNot:
      return truth<Real>(a == 0);
    case kExpCoarse:
      return math::exp_coarse(a);
    case kExpLow:
      return math::exp_low(a);
    case kRoundFloat16:
      return rounded<math::float16>(a);
    case kRoundBfloat16:
      return rounded<math::bfloat16>(a);
    case kRoundFloat32:
      return rounded<float>(a);
    case kExpLow16:
      return math::exp_low<true>(a);
    case kReciprocal16:
      return reciprocal_16(a);
    case kAdd:
      return a + b;
    case kSubtract:
      return a - b;
    case kMultiply:
      return a * b;
    case kDivide:
      return a / b;
    case kMinimum:
      return smaller_of(a, b);
    case kMaximum:
      return larger_of(a, b);
    case kLess:
      return truth<Real>(a < b);
    case kLessEqual:
      return truth<Real>(a <= b);
    case kEqual:
      return truth<Real>(a == b);
    case kNotEqual:
      return truth<Real>(a != b);
    case kAnd:
      return truth<Real>((a != 0) & (b != 0));
    case kOr:
      return truth<Real>((a != 0) | (b != 0));
    case kExp2Lifted:
      return exp2_lifted(a, b);
    case kLogSumTerm:
      return math::log_sum_term<false>(a, b);
    case kLogSumTerm16:
      return math::log_sum_term<true>(a, b);
    case kFma:
      return math::fma(a, b, c);
    case kWhere:
      return a != 0 ? b : c;
    case kLogSum:
      return math::log_sum<false>(a, b, c);
    case kLogSumRest:
      return math::log_sum_rest<false>(a, b, c);
    case kLogSum16:
      return math::log_sum<true>(a, b, c);
    case kLogSumRest16:
      return math::log_sum_rest<true>(a, b, c);
    case kExp2BelowFloat16:
      return exp2_below_16<math::SingleForFloat16>(a, b, c);
    case kExp2BelowBfloat16:
      return exp2_below_16<math::SingleForBfloat16>(a, b, c);
    default:
      return compute_for_16_bits<kOperation>(a);
  }
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_ELEMENTWISE_H_
