// What each elementwise operation of a program computes: functions that the interpreter's loops
// over registers call, those that were written out as C++, and the kernels of CUDA.
#ifndef BRIDGE_INTERPRETER_ELEMENTWISE_H_
#define BRIDGE_INTERPRETER_ELEMENTWISE_H_

#include "interpreter/program.h"
#include "math/convert.h"
#include "math/gelu.h"
#include "math/log_sum.h"
#include "math/logistic_for_16_bits.h"
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

// NaN where either is, the first where they are equal.
template <class Real>
BRIDGE_HD Real smaller_of(Real a, Real b) {
  return (a <= b) | (a != a) ? a : b;
}
template <class Real>
BRIDGE_HD Real larger_of(Real a, Real b) {
  return (a >= b) | (a != a) ? a : b;
}

// As it comes back from an array of T.
template <class T, class Real>
BRIDGE_HD Real rounded(Real x) {
  const T stored = math::round_to<T>(x);
  if constexpr (sizeof(Real) == sizeof(float))
    return math::to_float(stored);
  else
    return math::to_double(stored);
}

// Functions for arrays of a 16-bit type; of doubles they are the exact ones.
template <class Precision, class Real>
BRIDGE_HD Real sigmoid_16(Real x) {
  if constexpr (sizeof(Real) == sizeof(float))
    return math::sigmoid_for_16_bits<Precision>(x);
  else
    return math::sigmoid(x);
}

template <class Precision, class Real>
BRIDGE_HD Real silu_16(Real x) {
  if constexpr (sizeof(Real) == sizeof(float))
    return math::silu_for_16_bits<Precision>(x);
  else
    return math::silu(x);
}

template <class Precision, class Real>
BRIDGE_HD Real silu_slope_16(Real x) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    return math::silu_slope_for_16_bits<Precision>(x);
  } else {
    const Real s = math::sigmoid(x);
    return s + s * (x * math::sigmoid(-x));
  }
}

template <class Precision, math::GeluForm F, int kOrder, class Real>
BRIDGE_HD Real gelu_16(Real x) {
  if constexpr (sizeof(Real) == sizeof(float))
    return math::gelu<Precision, F, kOrder>(x);
  else
    return math::gelu<math::Double, F, kOrder>(x);
}

template <int32_t kOperation, class Real>
BRIDGE_HD Real compute(Real a, Real b, Real c) {
  using Precision = math::detail::ExactPrecision<Real>;
  using math::GeluForm;
  (void)b;
  (void)c;
  switch (kOperation) {  // a constant
    case kNegative:
      return -a;
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
    case kRoundFloat16:
      return rounded<math::float16>(a);
    case kRoundBfloat16:
      return rounded<math::bfloat16>(a);
    case kRoundFloat32:
      return rounded<float>(a);
    case kSigmoidFloat16:
      return sigmoid_16<math::SingleForFloat16>(a);
    case kSiluFloat16:
      return silu_16<math::SingleForFloat16>(a);
    case kSiluSlopeFloat16:
      return silu_slope_16<math::SingleForFloat16>(a);
    case kGeluTanhFloat16:
      return gelu_16<math::SingleForFloat16, GeluForm::tanh, 0>(a);
    case kGeluTanh1Float16:
      return gelu_16<math::SingleForFloat16, GeluForm::tanh, 1>(a);
    case kGeluErfFloat16:
      return gelu_16<math::SingleForFloat16, GeluForm::erf, 0>(a);
    case kGeluErf1Float16:
      return gelu_16<math::SingleForFloat16, GeluForm::erf, 1>(a);
    case kGeluSigmoidFloat16:
      return gelu_16<math::SingleForFloat16, GeluForm::sigmoid, 0>(a);
    case kGeluSigmoid1Float16:
      return gelu_16<math::SingleForFloat16, GeluForm::sigmoid, 1>(a);
    case kSigmoidBfloat16:
      return sigmoid_16<math::SingleForBfloat16>(a);
    case kSiluBfloat16:
      return silu_16<math::SingleForBfloat16>(a);
    case kSiluSlopeBfloat16:
      return silu_slope_16<math::SingleForBfloat16>(a);
    case kGeluTanhBfloat16:
      return gelu_16<math::SingleForBfloat16, GeluForm::tanh, 0>(a);
    case kGeluTanh1Bfloat16:
      return gelu_16<math::SingleForBfloat16, GeluForm::tanh, 1>(a);
    case kGeluErfBfloat16:
      return gelu_16<math::SingleForBfloat16, GeluForm::erf, 0>(a);
    case kGeluErf1Bfloat16:
      return gelu_16<math::SingleForBfloat16, GeluForm::erf, 1>(a);
    case kGeluSigmoidBfloat16:
      return gelu_16<math::SingleForBfloat16, GeluForm::sigmoid, 0>(a);
    case kGeluSigmoid1Bfloat16:
      return gelu_16<math::SingleForBfloat16, GeluForm::sigmoid, 1>(a);
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
    case kExpShifted:
      return math::exp_shifted(a, b);
    case kFma:
      return math::fma(a, b, c);
    case kWhere:
      return a != 0 ? b : c;
    default:
      return math::log_sum(a, b, c);
  }
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_ELEMENTWISE_H_
