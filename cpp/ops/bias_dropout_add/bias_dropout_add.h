// What the CPU and the CUDA kernel of bias_dropout_add share: what a call draws, its arithmetic and
// the checks of its arguments. Host code and constants only.
#ifndef BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_H_
#define BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_H_

#include <bridge/bridge.h>
#include <stddef.h>
#include <stdint.h>

#include "walks/array_checks.h"
#include "walks/dtypes.h"

namespace bridge {

// What becomes of the elements: all are kept and nothing is drawn, each is kept or dropped by its
// random word, or none is kept and the input not even read.
enum class Keep : int32_t { all = 0, some = 1, none = 2 };
constexpr int kKeeps = 3;

constexpr int64_t kKeepNone = int64_t{1} << 32;  // the threshold no 32-bit word reaches

inline Keep keep_of(const bridge_bias_dropout_add& call) {
  return call.threshold == 0 ? Keep::all : call.threshold < kKeepNone ? Keep::some : Keep::none;
}

// The arithmetic of a valid call is float64 if any array is, else float32.
inline bool is_double(const bridge_bias_dropout_add& call) {
  const bridge_array* const arrays[] = {&call.input.full, &call.input.row, &call.residual,
                                        &call.output.full, &call.output.row};
  bool any = false;
  for (const bridge_array* array : arrays)
    any |= is_present(*array) && array->dtype == BRIDGE_FLOAT64;
  return any;
}

// Whether element indices go on from one row to the next as the elements of dense rows do.
inline bool is_index_dense(const bridge_bias_dropout_add& call) {
  return keep_of(call) != Keep::some || call.index_cols == call.cols;
}

inline uint64_t integer_at(const bridge_integers& integers, int64_t batch) {
  return integers.data == nullptr
             ? 0
             : static_cast<uint64_t>(integers.data[batch * integers.batch_stride]);
}

namespace check {

// The 64-bit integers of a call that reads them: where they lie, as for an operand.
inline bridge_status check_integers(const bridge_integers& integers, const char* name,
                                    int64_t batch, const Refusal& fail) {
  if (integers.data == nullptr) return BRIDGE_OK;
  const auto base = reinterpret_cast<uintptr_t>(integers.data);
  if (base % sizeof(int64_t) != 0)
    return fail("bias_dropout_add: %s is at %p, expected a multiple of 8 bytes", name,
                static_cast<const void*>(integers.data));
  int64_t last = 0;
  const int64_t stride = batch <= 1 ? 0 : integers.batch_stride;
  if (__builtin_mul_overflow(stride, batch - 1, &last) ||
      __builtin_mul_overflow(last, int64_t{sizeof(int64_t)}, &last) ||
      __builtin_add_overflow(last, static_cast<int64_t>(base), &last))
    return fail("bias_dropout_add: %s has stride %lld, which reaches beyond 63 bits of address",
                name, static_cast<long long>(integers.batch_stride));
  return BRIDGE_OK;
}

}  // namespace check

// BRIDGE_OK, or BRIDGE_INVALID_ARGUMENT with a message that names the field, what it holds and what
// is expected. Refuses whatever could make a kernel read or write where it should not; an overlap
// of an output with another operand is found where both are dense, and else the caller's duty.
inline bridge_status validate(const bridge_bias_dropout_add& call, char* message,
                              size_t message_bytes) {
  using check::NamedArray;
  const check::Refusal fail{message, message_bytes};
  const check::Sizes sizes = check::sizes_of(call);
  int64_t elements = 0;
  const bridge_status counted = check::count_elements("bias_dropout_add", sizes, fail, &elements);
  if (counted != BRIDGE_OK) return counted;
  if (call.threshold < 0 || call.threshold > kKeepNone)
    return fail("bias_dropout_add: threshold is %lld, expected 0 to 2^32",
                static_cast<long long>(call.threshold));
  if (!(call.factor - call.factor == 0))  // infinite or NaN
    return fail("bias_dropout_add: factor is %g, expected a finite number", call.factor);

  NamedArray operands[5];
  int count = 0;
  auto add = [&](const bridge_array& array, const char* name, bool row, bool in_pair = true) {
    if (is_present(array)) operands[count++] = {&array, name, row, -1, in_pair};
  };
  add(call.input.full, "input", false);
  add(call.input.row, "input", true);
  add(call.residual, "residual", false, false);
  const int inputs = count;
  add(call.output.full, "output", false);
  add(call.output.row, "output", true);
  // An array of no elements may carry any pointer, a null one too.
  if (elements != 0) {
    if (!is_present(call.input.full))
      return fail("bias_dropout_add: input.full is absent, but required");
    if (inputs == count)
      return fail("bias_dropout_add: both outputs are absent, expected at least one");
  }
  if (is_present(call.residual) && is_present(call.output.row))
    return fail(
        "bias_dropout_add: output.row is wanted, but there are no column sums with a "
        "residual");
  if (elements != 0 && keep_of(call) == Keep::some) {
    if (call.rows > 1 && call.index_cols < call.cols)
      return fail("bias_dropout_add: index_cols is %lld, expected at least cols, %lld",
                  static_cast<long long>(call.index_cols), static_cast<long long>(call.cols));
    const bridge_integers* const integers[] = {&call.seed, &call.offset, &call.start};
    const char* const names[] = {"seed", "offset", "start"};
    for (int i = 0; i < 3; ++i) {
      const bridge_status status = check::check_integers(*integers[i], names[i], call.batch, fail);
      if (status != BRIDGE_OK) return status;
    }
  }
  return check::check_operands("bias_dropout_add", sizes, operands, inputs, count, fail);
}

}  // namespace bridge

#endif  // BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_H_
