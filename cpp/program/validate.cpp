#include <stdio.h>

#include "drivers/integers.h"
#include "program/interpreter.h"

namespace bridge::interpreter {
namespace {

bool is_dtype_of(Role role, int32_t dtype) {
  switch (role) {
    case Role::mask:
      return dtype == BRIDGE_BOOL || dtype == BRIDGE_UINT8;
    case Role::label:
      return dtype > BRIDGE_FLOAT64 && dtype <= BRIDGE_UINT64;
    case Role::integer:
      return dtype == BRIDGE_INT64;
    default:
      return is_floating(dtype) || is_of_8_bits(dtype);
  }
}

// Returns true if an array of the role has any element in this call.
bool has_elements(Role role, bool has_rows, const bridge_program& call) {
  return has_rows &&
         (role == Role::per_row || role == Role::label || role == Role::integer || call.cols > 0);
}

bool is_aligned(const bridge_program_array& array) {
  return reinterpret_cast<uintptr_t>(array.data) %
             static_cast<uintptr_t>(element_bytes(array.dtype)) ==
         0;
}

}  // namespace

Counts counts_of(const bridge_program& call) {
  Counts counts{1, 1};
  for (int32_t d = 0; d < call.dims; ++d) {
    (d < call.batch_dims ? counts.batches : counts.rows) *= call.size[d];
  }
  return counts;
}

bool is_double(const bridge_program& call) {
  for (int32_t i = 0; i < call.operands; ++i) {
    if (call.operand[i].dtype == BRIDGE_FLOAT64) return true;
  }
  for (int32_t i = 0; i < call.results; ++i) {
    if (call.result[i].dtype == BRIDGE_FLOAT64) return true;
  }
  return false;
}

int32_t column_sum_count(const View& view) {
  int32_t count = 0;
  for (int32_t i = 0; i < view.header.results; ++i) count += view.result_role(i) == Role::row;
  return count;
}

bridge_status validate(const bridge_program& call, View* view, char* message, size_t bytes) {
  const char* why = nullptr;
  if (read(call.code, call.words, view, &why)) return check_arrays(call, *view, message, bytes);
  snprintf(message, bytes, "program: its bytecode cannot be read: %s", why);
  return BRIDGE_INVALID_ARGUMENT;
}

bridge_status check_arrays(const bridge_program& call, const View& view, char* message,
                           size_t bytes) {
  const auto fail = [=](const char* what, int32_t number) {
    snprintf(message, bytes, "program: %s (%d)", what, number);
    return BRIDGE_INVALID_ARGUMENT;
  };
  if (call.operands != view.header.operands)
    return fail("another number of operands", call.operands);
  if (call.results != view.header.results) return fail("another number of results", call.results);
  if (call.operand == nullptr || call.result == nullptr) return fail("its arrays are null", 0);
  if (call.dims < 0 || call.dims > BRIDGE_MAX_DIMS) return fail("dims is out of range", call.dims);
  if (call.batch_dims < 0 || call.batch_dims > call.dims) {
    return fail("batch_dims is out of range", call.batch_dims);
  }
  int64_t rows = 1, elements = 0;
  bool has_rows = true;
  for (int32_t d = 0; d < call.dims; ++d) {
    if (call.size[d] < 0) return fail("a size is negative", d);
    has_rows = has_rows && call.size[d] > 0;
  }
  for (int32_t d = 0; d < call.dims; ++d) {
    if (__builtin_mul_overflow(rows, call.size[d], &rows)) return fail("too many rows", d);
  }
  if (call.cols < 0 || __builtin_mul_overflow(rows, call.cols, &elements) ||
      elements > INT64_MAX / 64) {
    return fail("cols is negative, or there are too many elements", 0);
  }
  if (view.block > 0 && call.cols % view.block != 0) {
    return fail("cols is no multiple of the columns of a block", view.block);
  }
  for (int32_t i = 0; i < call.operands; ++i) {
    if (view.operand_block(i) > 0 && call.operand[i].pairs != view.operand_block(i))
      return fail("pairs is not the number of columns of a block of an operand", i);
  }
  for (int32_t i = 0; i < call.results; ++i) {
    if (view.result_block(i) > 0 && call.result[i].pairs != view.result_block(i))
      return fail("pairs is not the number of columns of a block of a result", i);
  }
  for (int32_t i = 0; i < call.operands; ++i) {
    const Role role = view.operand_role(i);
    if (!is_dtype_of(role, call.operand[i].dtype)) return fail("the dtype of an operand", i);
    if (call.operand[i].data == nullptr && has_elements(role, has_rows, call)) {
      return fail("an operand is null", i);
    }
    if (has_elements(role, has_rows, call) && !is_aligned(call.operand[i])) {
      return fail("an operand is not aligned to its elements", i);
    }
  }
  for (int32_t i = 0; i < call.results; ++i) {
    const Role role = view.result_role(i);
    // A gradient, which a column sum is, has no 8-bit dtype.
    const bool is_narrow = role != Role::row && is_of_8_bits(call.result[i].dtype);
    if (!is_floating(call.result[i].dtype) && !is_narrow) return fail("the dtype of a result", i);
    // Column sums over no rows are written too, as zeros.
    const bool writes = role == Role::row ? call.cols > 0 : has_elements(role, has_rows, call);
    if (writes && call.result[i].data == nullptr) return fail("a result is null", i);
    if (writes && !is_aligned(call.result[i])) {
      return fail("a result is not aligned to its elements", i);
    }
    if (role == Role::row && call.result[i].col_stride != 1 && call.cols > 1) {
      return fail("the columns of a column sum are not adjacent", i);
    }
  }
  return BRIDGE_OK;
}

}  // namespace bridge::interpreter
