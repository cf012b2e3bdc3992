// bias_gelu from operands: the checks and the shape arithmetic that both front doors share.
#ifndef BRIDGE_PYTHON_BIAS_GELU_CALL_H_
#define BRIDGE_PYTHON_BIAS_GELU_CALL_H_

#include <cstddef>

#include "operand.h"

namespace bridge::python {

// At most: the input and every factor, two operands each.
constexpr size_t kMaxBiasGeluOperands = 2 * (1 + static_cast<size_t>(BRIDGE_MAX_FACTORS));

// operands: [full, row] of the input, then of each factor; outputs: [full, row].
CallError bind_bias_gelu(const Operand* operands, size_t operand_count, const Operand outputs[2],
                         int32_t form, int32_t order, int32_t batch_ndim, bridge_bias_gelu* call);

}  // namespace bridge::python

#endif  // BRIDGE_PYTHON_BIAS_GELU_CALL_H_
