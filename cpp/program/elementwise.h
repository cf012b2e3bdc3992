// The elementwise operations of a program as functions, written by cmake/write_operations.py from
// bridge/lang/operations.py. The interpreter's loops over registers, generated programs and the
// CUDA kernels call them.
#ifndef BRIDGE_INTERPRETER_ELEMENTWISE_H_
#define BRIDGE_INTERPRETER_ELEMENTWISE_H_

#include "program/operations.h"
#include "program/scalar_functions.h"

namespace bridge::interpreter {

// The first half of a function that one loop may start for many elements before another finishes
// them. Several functions have the same first half; math::Started holds its values.
template <int32_t kOperation, class Real>
BRIDGE_HD math::Started<Real> start(Real a) {
  using math::GeluForm;
  switch (kOperation) {  // a constant
    case kSigmoid:
    case kSilu:
      return math::start_logistic(a);
    case kGeluTanh:
      return math::detail::start_gelu<GeluForm::tanh, 0>(a);
    case kGeluTanh1:
    case kGeluTanh2:
      return math::detail::start_gelu<GeluForm::tanh, 1>(a);
    case kGeluSigmoid:
      return math::detail::start_gelu<GeluForm::sigmoid, 0>(a);
    default:  // kGeluSigmoid1, kGeluSigmoid2
      return math::detail::start_gelu<GeluForm::sigmoid, 1>(a);
  }
}

template <int32_t kOperation, class Real>
BRIDGE_HD Real finish(Real a, math::Started<Real> started) {
  using math::GeluForm;
  switch (kOperation) {  // a constant
    case kSigmoid:
      return math::sigmoid(a, started);
    case kSilu:
      return math::silu(a, started);
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
    default:  // kGeluSigmoid2
      return math::detail::finish_gelu<GeluForm::sigmoid, 2>(a, started);
  }
}

template <int32_t kOperation, class Real>
BRIDGE_HD Real compute(Real a, Real b, Real c) {
  using Precision = PrecisionOr<math::Single, Real>;
  using Float16 = PrecisionOr<math::SingleForFloat16, Real>;
  using Bfloat16 = PrecisionOr<math::SingleForBfloat16, Real>;
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
    case kSigmoidFloat16:
      return math::sigmoid_for_16_bits<Float16>(a);
    case kSiluFloat16:
      return math::silu_for_16_bits<Float16>(a);
    case kSiluSlopeFloat16:
      return math::silu_slope_for_16_bits<Float16>(a);
    case kGeluTanhFloat16:
      return math::gelu<Float16, GeluForm::tanh, 0>(a);
    case kGeluTanh1Float16:
      return math::gelu<Float16, GeluForm::tanh, 1>(a);
    case kGeluErfFloat16:
      return math::gelu<Float16, GeluForm::erf, 0>(a);
    case kGeluErf1Float16:
      return math::gelu<Float16, GeluForm::erf, 1>(a);
    case kGeluSigmoidFloat16:
      return math::gelu<Float16, GeluForm::sigmoid, 0>(a);
    case kGeluSigmoid1Float16:
      return math::gelu<Float16, GeluForm::sigmoid, 1>(a);
    case kSigmoidBfloat16:
      return math::sigmoid_for_16_bits<Bfloat16>(a);
    case kSiluBfloat16:
      return math::silu_for_16_bits<Bfloat16>(a);
    case kSiluSlopeBfloat16:
      return math::silu_slope_for_16_bits<Bfloat16>(a);
    case kGeluTanhBfloat16:
      return math::gelu<Bfloat16, GeluForm::tanh, 0>(a);
    case kGeluTanh1Bfloat16:
      return math::gelu<Bfloat16, GeluForm::tanh, 1>(a);
    case kGeluErfBfloat16:
      return math::gelu<Bfloat16, GeluForm::erf, 0>(a);
    case kGeluErf1Bfloat16:
      return math::gelu<Bfloat16, GeluForm::erf, 1>(a);
    case kGeluSigmoidBfloat16:
      return math::gelu<Bfloat16, GeluForm::sigmoid, 0>(a);
    case kGeluSigmoid1Bfloat16:
      return math::gelu<Bfloat16, GeluForm::sigmoid, 1>(a);
    case kReciprocal16:
      return reciprocal_16(a);
    case kExpLow16:
      return math::exp_low<true>(a);
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
    case kRoundInt8:
      return rounded<int8_t>(a);
    case kRoundFloat8E4m3fn:
      return rounded<math::float8_e4m3fn>(a);
    case kRoundFloat8E5m2:
      return rounded<math::float8_e5m2>(a);
    case kRoundFloat8E8m0fnu:
      return rounded<math::float8_e8m0fnu>(a);
    case kBinade:
      return binade(a);
    case kSin:
      return math::sin(a);
    default:  // kCos
      return math::cos(a);
  }
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_ELEMENTWISE_H_
