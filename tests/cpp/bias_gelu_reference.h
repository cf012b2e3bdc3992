// The definition of bias_gelu, one element and one row at a time, for comparison bit for bit.
#ifndef BRIDGE_TESTS_BIAS_GELU_REFERENCE_H_
#define BRIDGE_TESTS_BIAS_GELU_REFERENCE_H_

#include <bridge/bridge.h>

#include <vector>

#include "array_reference.h"
#include "math/gelu.h"
#include "ops/bias_gelu/bias_gelu.h"

namespace bridge::reference {

template <class Precision, math::GeluForm form, class Real>
Real gelu(int order, Real h) {
  if (order == 0) return math::gelu<Precision, form, 0>(h);
  if (order == 1) return math::gelu<Precision, form, 1>(h);
  if (order == 2) return math::gelu<Precision, form, 2>(h);
  return math::gelu_high_order<Precision, form>(h, order);
}

template <class Precision, class Real>
Real gelu(int form, int order, Real h) {
  using math::GeluForm;
  if (form == BRIDGE_GELU_TANH) return gelu<Precision, GeluForm::tanh>(order, h);
  if (form == BRIDGE_GELU_ERF) return gelu<Precision, GeluForm::erf>(order, h);
  return gelu<Precision, GeluForm::sigmoid>(order, h);
}

template <class Precision>
void run_in(const bridge_bias_gelu& call) {
  using Real = typename Precision::real;
  store_results<Real>(call, [&](int64_t batch, int64_t row, int64_t col) {
    Real value = gelu<Precision>(call.form, call.order, load<Real>(call.input, batch, row, col));
    for (int i = 0; i < call.factors; ++i)
      value = value * load<Real>(call.factor[i], batch, row, col);
    return value;
  });
}

inline void run(const bridge_bias_gelu& call) {
  const bridge_array* operands[2 * BRIDGE_MAX_FACTORS + 4] = {&call.input.full, &call.input.row,
                                                              &call.output.full, &call.output.row};
  for (int i = 0; i < call.factors; ++i) {
    operands[4 + 2 * i] = &call.factor[i].full;
    operands[5 + 2 * i] = &call.factor[i].row;
  }
  // The dtypes of results play no part, but for float64.
  bool any_double = false, one_16_bit = call.input.full.dtype <= BRIDGE_BFLOAT16;
  for (const bridge_array* operand : operands) {
    if (operand == nullptr || operand->data == nullptr) continue;
    const bool is_result = operand == &call.output.full || operand == &call.output.row;
    any_double = any_double || operand->dtype == BRIDGE_FLOAT64;
    one_16_bit = one_16_bit && (is_result || operand->dtype == call.input.full.dtype);
  }
  if (any_double) return run_in<math::Double>(call);
  if (!one_16_bit) return run_in<math::Single>(call);
  if (call.input.full.dtype == BRIDGE_FLOAT16) return run_in<math::SingleForFloat16>(call);
  run_in<math::SingleForBfloat16>(call);
}

}  // namespace bridge::reference

#endif  // BRIDGE_TESTS_BIAS_GELU_REFERENCE_H_
