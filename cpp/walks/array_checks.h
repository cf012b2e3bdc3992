// The checks that the ops on arrays of [batch, rows, cols] share: what a malformed call says of its
// operands, and whatever could make a kernel read or write where it should not. Host code.
#ifndef BRIDGE_WALKS_ARRAY_CHECKS_H_
#define BRIDGE_WALKS_ARRAY_CHECKS_H_

#include <bridge/bridge.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "walks/dtypes.h"

namespace bridge {

constexpr bool is_present(const bridge_array& array) { return array.data != nullptr; }

namespace check {

struct Sizes {
  int64_t batch;
  int64_t rows;
  int64_t cols;
};

template <class Call>
constexpr Sizes sizes_of(const Call& call) {
  return {call.batch, call.rows, call.cols};
}

// Writes the message of a refused call.
struct Refusal {
  char* message;
  size_t bytes;

  __attribute__((format(printf, 2, 3))) bridge_status operator()(const char* format, ...) const {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, bytes, format, arguments);
    va_end(arguments);
    return BRIDGE_INVALID_ARGUMENT;
  }
};

// An array under check: a member of a pair of the call, or by itself. index is -1 where
// there is one such pair.
struct NamedArray {
  const bridge_array* array;
  const char* name;
  bool row;
  int index = -1;
  bool in_pair = true;
};

// An operand's name in messages ("factor[2].row"), written when there is a message to write: printf
// for every operand of every call would cost more than the rest of a tiny call.
struct Name {
  char text[24];

  explicit Name(const NamedArray& operand) {
    const char* member = operand.row ? "row" : "full";
    if (!operand.in_pair)
      snprintf(text, sizeof text, "%s", operand.name);
    else if (operand.index < 0)
      snprintf(text, sizeof text, "%s.%s", operand.name, member);
    else
      snprintf(text, sizeof text, "%s[%d].%s", operand.name, operand.index, member);
  }
};

constexpr int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

// Strides that matter: a dimension of one element has none.
inline int64_t row_step(const Sizes& sizes, const NamedArray& operand) {
  return operand.row || sizes.rows <= 1 ? 0 : operand.array->row_stride;
}
inline int64_t batch_step(const Sizes& sizes, const NamedArray& operand) {
  return sizes.batch <= 1 ? 0 : operand.array->batch_stride;
}

// The bytes [begin, end) between which the operand lies; false if they do not fit in 63 bits.
inline bool byte_range(const Sizes& sizes, const NamedArray& operand, int64_t* begin,
                       int64_t* end) {
  int64_t rows = 0, batches = 0, low = 0, high = 0;
  const int64_t row = row_step(sizes, operand), batch = batch_step(sizes, operand);
  const int64_t bytes = dtype_bytes(operand.array->dtype);
  if (__builtin_mul_overflow(row, sizes.rows - 1, &rows)) return false;
  if (__builtin_mul_overflow(batch, sizes.batch - 1, &batches)) return false;
  if (__builtin_add_overflow(rows < 0 ? rows : 0, batches < 0 ? batches : 0, &low)) return false;
  if (__builtin_add_overflow(rows > 0 ? rows : 0, batches > 0 ? batches : 0, &high)) return false;
  if (__builtin_add_overflow(high, sizes.cols, &high)) return false;
  const int64_t base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(operand.array->data));
  return !__builtin_mul_overflow(low, bytes, &low) && !__builtin_mul_overflow(high, bytes, &high) &&
         !__builtin_add_overflow(low, base, begin) && !__builtin_add_overflow(high, base, end);
}

// Whether the rows of an output are apart from one another: the smaller step is at least a row,
// the larger at least everything that the smaller spans.
inline bool rows_are_apart(const Sizes& sizes, const NamedArray& operand) {
  int64_t small = magnitude(row_step(sizes, operand)),
          large = magnitude(batch_step(sizes, operand));
  int64_t small_count = operand.row ? 1 : sizes.rows, large_count = sizes.batch;
  if (small_count > 1 && large_count > 1 && small > large) {
    const int64_t step = small, count = small_count;
    small = large, small_count = large_count, large = step, large_count = count;
  }
  if (small_count > 1 && small < sizes.cols) return false;
  if (large_count <= 1) return true;
  return large >= (small_count > 1 ? small * (small_count - 1) : 0) + sizes.cols;
}

inline bool is_dense(const Sizes& sizes, const NamedArray& operand) {
  if (operand.row) return sizes.batch <= 1 || operand.array->batch_stride == sizes.cols;
  return (sizes.rows <= 1 || operand.array->row_stride == sizes.cols) &&
         (sizes.batch <= 1 || operand.array->batch_stride == sizes.rows * sizes.cols);
}

inline bool is_same_layout(const Sizes& sizes, const NamedArray& a, const NamedArray& b) {
  return a.array->data == b.array->data && a.array->dtype == b.array->dtype && a.row == b.row &&
         row_step(sizes, a) == row_step(sizes, b) && batch_step(sizes, a) == batch_step(sizes, b);
}

// BRIDGE_OK and how many elements there are, or a refusal.
inline bridge_status count_elements(const char* op, const Sizes& sizes, const Refusal& fail,
                                    int64_t* elements) {
  if (sizes.batch < 0 || sizes.rows < 0 || sizes.cols < 0)
    return fail("%s: sizes are [%lld, %lld, %lld], expected none below 0", op,
                static_cast<long long>(sizes.batch), static_cast<long long>(sizes.rows),
                static_cast<long long>(sizes.cols));
  if (__builtin_mul_overflow(sizes.rows, sizes.cols, elements) ||
      __builtin_mul_overflow(*elements, sizes.batch, elements))
    return fail("%s: sizes are [%lld, %lld, %lld], more elements than 63 bits count", op,
                static_cast<long long>(sizes.batch), static_cast<long long>(sizes.rows),
                static_cast<long long>(sizes.cols));
  return BRIDGE_OK;
}

// BRIDGE_OK, or what is wrong with one of `count` operands, the first `inputs` of which are inputs
// and the rest outputs. An overlap of an output with another operand is found where both are dense,
// and else the caller's duty; an output full may be an input full in the same layout.
template <int kMaxOperands>
bridge_status check_operands(const char* op, const Sizes& sizes,
                             const NamedArray (&operands)[kMaxOperands], int inputs, int count,
                             const Refusal& fail) {
  int64_t begin[kMaxOperands], end[kMaxOperands];
  for (int i = 0; i < count; ++i) {
    const NamedArray& operand = operands[i];
    const bridge_array& array = *operand.array;
    begin[i] = end[i] = 0;
    if (array.dtype < BRIDGE_FLOAT16 || array.dtype > BRIDGE_FLOAT64)
      return fail("%s: %s has dtype %d, expected 0 to 3 (float16, bfloat16, float32, float64)", op,
                  Name(operand).text, static_cast<int>(array.dtype));
    // With no columns or batches nothing is read or written; with no rows only output.row is.
    if (sizes.batch == 0 || sizes.cols == 0) continue;
    const bool output = i >= inputs;
    if (sizes.rows == 0 && !(output && operand.row)) continue;
    if (reinterpret_cast<uintptr_t>(array.data) &
        static_cast<uintptr_t>(dtype_bytes(array.dtype) - 1))
      return fail("%s: %s is at %p, expected a multiple of %d bytes", op, Name(operand).text,
                  array.data, static_cast<int>(dtype_bytes(array.dtype)));
    if (operand.row && array.row_stride != 0)
      return fail("%s: %s has row_stride %lld, expected 0: it is one vector for all rows", op,
                  Name(operand).text, static_cast<long long>(array.row_stride));
    if (array.row_stride == INT64_MIN || array.batch_stride == INT64_MIN ||
        !byte_range(sizes, operand, &begin[i], &end[i]))
      return fail("%s: %s has strides [%lld, %lld], which reach beyond 63 bits of address", op,
                  Name(operand).text, static_cast<long long>(array.batch_stride),
                  static_cast<long long>(array.row_stride));
    if (!output) continue;
    if (!rows_are_apart(sizes, operand))
      return fail("%s: %s has strides [%lld, %lld], with which its rows overlap", op,
                  Name(operand).text, static_cast<long long>(array.batch_stride),
                  static_cast<long long>(array.row_stride));
    for (int j = 0; j < i; ++j) {
      if (end[j] <= begin[i] || end[i] <= begin[j]) continue;
      if (!operand.row && is_same_layout(sizes, operand, operands[j])) continue;
      if (is_dense(sizes, operand) && is_dense(sizes, operands[j]))
        return fail("%s: %s overlaps %s", op, Name(operand).text, Name(operands[j]).text);
    }
  }
  return BRIDGE_OK;
}

}  // namespace check
}  // namespace bridge

#endif  // BRIDGE_WALKS_ARRAY_CHECKS_H_
