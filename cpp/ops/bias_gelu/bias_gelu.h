// What the CPU and the CUDA kernel of bias_gelu share: the arithmetic of a call and the checks of
// its arguments. Host code and constants only.
#ifndef BRIDGE_OPS_BIAS_GELU_BIAS_GELU_H_
#define BRIDGE_OPS_BIAS_GELU_BIAS_GELU_H_

#include <bridge/bridge.h>
#include <stddef.h>
#include <stdint.h>

#include "walks/array_checks.h"
#include "walks/columns/column_sum_tree.h"
#include "walks/dtypes.h"

namespace bridge {

// The precisions of math/precision.h, as a call asks for them: that of a dtype has its number.
enum class Arithmetic : int32_t {
  single_for_float16 = BRIDGE_FLOAT16,
  single_for_bfloat16 = BRIDGE_BFLOAT16,
  single = BRIDGE_FLOAT32,
  double_ = BRIDGE_FLOAT64
};
constexpr int kArithmetics = 4;

// Calls visit(array, index) for every present operand of the call; index 0 is input.full, 1
// input.row, 2 + 2i and 3 + 2i the full and row of factor i.
template <class Visit>
void for_each_input(const bridge_bias_gelu& call, Visit&& visit) {
  if (is_present(call.input.full)) visit(call.input.full, 0);
  if (is_present(call.input.row)) visit(call.input.row, 1);
  for (int i = 0; i < call.factors; ++i) {
    if (is_present(call.factor[i].full)) visit(call.factor[i].full, 2 + 2 * i);
    if (is_present(call.factor[i].row)) visit(call.factor[i].row, 3 + 2 * i);
  }
}

// The arithmetic of a valid call whose every array is of this dtype.
constexpr Arithmetic native_arithmetic(int32_t dtype) { return static_cast<Arithmetic>(dtype); }

// The arithmetic of a valid call: float64 if any array is, that of a 16-bit type if all inputs are
// of it. A wider output of theirs asks for what is not rounded, not for another value.
inline Arithmetic arithmetic_of(const bridge_bias_gelu& call) {
  auto is_double = [](const bridge_array& array) {
    return is_present(array) && array.dtype == BRIDGE_FLOAT64;
  };
  bool any_double = is_double(call.output.full) || is_double(call.output.row);
  bool one_16_bit = is_16_bit(call.input.full.dtype);
  for_each_input(call, [&](const bridge_array& array, int) {
    any_double |= is_double(array);
    one_16_bit &= array.dtype == call.input.full.dtype;
  });
  return any_double   ? Arithmetic::double_
         : one_16_bit ? native_arithmetic(call.input.full.dtype)
                      : Arithmetic::single;
}

inline bool is_double(const bridge_bias_gelu& call) {
  return arithmetic_of(call) == Arithmetic::double_;
}

// BRIDGE_OK, or BRIDGE_INVALID_ARGUMENT with a message that names the field, what it holds and what
// is expected. Refuses whatever could make a kernel read or write where it should not; an overlap
// of an output with another operand is found where both are dense, and else the caller's duty.
inline bridge_status validate(const bridge_bias_gelu& call, char* message, size_t message_bytes) {
  using check::NamedArray;
  const check::Refusal fail{message, message_bytes};
  if (call.form < BRIDGE_GELU_TANH || call.form > BRIDGE_GELU_SIGMOID)
    return fail("bias_gelu: form is %d, expected 0 (tanh), 1 (erf) or 2 (sigmoid)",
                static_cast<int>(call.form));
  if (call.order < 0 || call.order > BRIDGE_MAX_GELU_ORDER)
    return fail("bias_gelu: order is %d, expected 0 to %d", static_cast<int>(call.order),
                static_cast<int>(BRIDGE_MAX_GELU_ORDER));
  if (call.factors < 0 || call.factors > BRIDGE_MAX_FACTORS)
    return fail("bias_gelu: factors is %d, expected 0 to %d", static_cast<int>(call.factors),
                static_cast<int>(BRIDGE_MAX_FACTORS));
  const check::Sizes sizes = check::sizes_of(call);
  int64_t elements = 0;
  const bridge_status counted = check::count_elements("bias_gelu", sizes, fail, &elements);
  if (counted != BRIDGE_OK) return counted;

  NamedArray operands[2 * BRIDGE_MAX_FACTORS + 4];
  int count = 0;
  auto add = [&](const bridge_pair& pair, const char* name, int index) {
    if (is_present(pair.full)) operands[count++] = {&pair.full, name, false, index};
    if (is_present(pair.row)) operands[count++] = {&pair.row, name, true, index};
  };
  add(call.input, "input", -1);
  for (int i = 0; i < call.factors; ++i) add(call.factor[i], "factor", i);
  const int inputs = count;
  add(call.output, "output", -1);

  // An array of no elements may carry any pointer, a null one too.
  if (elements != 0) {
    if (!is_present(call.input.full)) return fail("bias_gelu: input.full is absent, but required");
    for (int i = 0; i < call.factors; ++i)
      if (!is_present(call.factor[i].full) && !is_present(call.factor[i].row))
        return fail("bias_gelu: factor[%d] has neither full nor row", i);
    if (inputs == count) return fail("bias_gelu: both outputs are absent, expected at least one");
  }

  return check::check_operands("bias_gelu", sizes, operands, inputs, count, fail);
}

}  // namespace bridge

#endif  // BRIDGE_OPS_BIAS_GELU_BIAS_GELU_H_
