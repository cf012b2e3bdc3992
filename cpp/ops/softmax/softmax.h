// What the CPU and the CUDA kernels of softmax and its derivative share: the checks of a call's
// arguments. Host code.
#ifndef BRIDGE_OPS_SOFTMAX_SOFTMAX_H_
#define BRIDGE_OPS_SOFTMAX_SOFTMAX_H_

#include <bridge/bridge.h>
#include <stddef.h>
#include <stdint.h>

#include "drivers/rows/row_operands.h"
#include "math/softmax.h"

namespace bridge {

constexpr int32_t kSoftmaxJacobian = BRIDGE_SOFTMAX_PRODUCT | BRIDGE_SOFTMAX_U;
constexpr int32_t kSoftmaxTerms =
    BRIDGE_SOFTMAX_PRODUCT | BRIDGE_SOFTMAX_U | BRIDGE_SOFTMAX_V | BRIDGE_SOFTMAX_W;

// The operands that are there, the output last; returns how many. They point into the call.
inline int operands_of(bridge_softmax& call, RowOperand (&operands)[4]) {
  const int64_t bytes = element_bytes(call.dtype), cols = call.space.cols;
  int count = 0;
  operands[count++] = {"x", call.x.data, call.x.stride, cols, bytes};
  if (call.mask.data != nullptr)
    operands[count++] = {"mask", const_cast<uint8_t*>(call.mask.data), call.mask.stride,
                         call.mask.col_stride == 0 ? 1 : cols, 1};
  operands[count++] = {"output", call.output.data, call.output.stride, cols, bytes};
  return count;
}

inline int operands_of(bridge_softmax_derivative& call, RowOperand (&operands)[4]) {
  const int64_t bytes = element_bytes(call.dtype), cols = call.space.cols;
  int count = 0;
  operands[count++] = {"u", call.u.data, call.u.stride, cols, bytes};
  operands[count++] = {"v", call.v.data, call.v.stride, cols, bytes};
  if (call.w.data != nullptr) operands[count++] = {"w", call.w.data, call.w.stride, cols, bytes};
  operands[count++] = {"output", call.output.data, call.output.stride, cols, bytes};
  return count;
}

// The scale of a call whose arithmetic is float.
inline math::SoftmaxScale<float> single_scale(const bridge_softmax& call) {
  switch (call.dtype) {
    case BRIDGE_FLOAT16:
      return math::softmax_scale<math::SingleForFloat16>(call.scale);
    case BRIDGE_BFLOAT16:
      return math::softmax_scale<math::SingleForBfloat16>(call.scale);
    default:
      return math::softmax_scale<math::Single>(call.scale);
  }
}

namespace check {

inline bool is_finite(double x) { return x - x == 0; }

// What the two ops check alike.
template <class Call>
bridge_status check_rows(const char* op, const Call& call, const Refusal& fail) {
  if (!is_floating(call.dtype))
    return fail("%s: dtype is %d, expected 0 to 3 (float16, bfloat16, float32, float64)", op,
                static_cast<int>(call.dtype));
  if (!is_finite(call.scale))
    return fail("%s: scale is %g, expected a finite number", op, call.scale);
  int64_t elements = 0;
  const bridge_status status = check_space(op, call.space, fail, &elements);
  if (status != BRIDGE_OK || elements == 0) return status;
  Call copy = call;
  RowOperand operands[4];
  const int count = operands_of(copy, operands);
  for (int i = 0; i < count; ++i)
    if (operands[i].data == nullptr)
      return fail("%s: %s is absent, but required", op, operands[i].name);
  return check_operands(op, copy.space, operands, count, fail);
}

}  // namespace check

// BRIDGE_OK, or BRIDGE_INVALID_ARGUMENT with a message that names the field, what it holds and what
// is expected.
inline bridge_status validate(const bridge_softmax& call, char* message, size_t message_bytes) {
  const check::Refusal fail{message, message_bytes};
  if (call.mask.data != nullptr && call.mask.col_stride != 0 && call.mask.col_stride != 1)
    return fail("softmax: mask.col_stride is %lld, expected 0 or 1",
                static_cast<long long>(call.mask.col_stride));
  return check::check_rows("softmax", call, fail);
}

inline bridge_status validate(const bridge_softmax_derivative& call, char* message,
                              size_t message_bytes) {
  const check::Refusal fail{message, message_bytes};
  if (call.terms <= 0 || (call.terms & ~kSoftmaxTerms) != 0)
    return fail("softmax_derivative: terms is %d, expected 1 to %d", static_cast<int>(call.terms),
                static_cast<int>(kSoftmaxTerms));
  if (call.w.data == nullptr && call.terms != kSoftmaxJacobian) {
    // Without elements any pointer may be there, a null one too.
    int64_t elements = 0;
    const bridge_status status =
        check::check_space("softmax_derivative", call.space, fail, &elements);
    if (status != BRIDGE_OK) return status;
    if (elements != 0)
      return fail("softmax_derivative: w is absent, for which terms is %d, expected %d",
                  static_cast<int>(call.terms), static_cast<int>(kSoftmaxJacobian));
  }
  return check::check_rows("softmax_derivative", call, fail);
}

}  // namespace bridge

#endif  // BRIDGE_OPS_SOFTMAX_SOFTMAX_H_
