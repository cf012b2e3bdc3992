// The parts that ops over rows share: checks of operands and merging of dimensions. Host code.
#ifndef BRIDGE_DRIVERS_ROWS_ROW_OPERANDS_H_
#define BRIDGE_DRIVERS_ROWS_ROW_OPERANDS_H_

#include <bridge/bridge.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "drivers/dtypes.h"

namespace bridge {

// One operand of a row space, with elements of any type.
struct RowOperand {
  const char* name;
  void* data;
  int64_t* stride;
  int64_t cols;  // the extent of its rows; 1 if one element serves all columns
  int64_t bytes;
};

// Returns the number of rows of a checked space; 1 without dimensions.
inline int64_t row_count(const bridge_row_space& space) {
  int64_t rows = 1;
  for (int d = 0; d < space.dims; ++d) rows *= space.size[d];
  return rows;
}

// Returns the number of elements of a row that the causal rule leaves visible. `query` is the index
// of the row in the last dimension.
inline int64_t visible_cols(const bridge_row_space& space, int64_t query) {
  if (!space.causal) return space.cols;
  const int64_t visible = query + 1 + space.cols - space.size[space.dims - 1];
  return visible < 0 ? 0 : visible < space.cols ? visible : space.cols;
}

namespace check {

// Writes the message for a rejected call.
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

constexpr int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

inline bridge_status check_space(const char* op, const bridge_row_space& space, const Refusal& fail,
                                 int64_t* elements) {
  if (space.dims < 0 || space.dims > BRIDGE_MAX_DIMS)
    return fail("%s: dims is %d, expected 0 to %d", op, static_cast<int>(space.dims),
                static_cast<int>(BRIDGE_MAX_DIMS));
  if (space.causal != 0 && space.dims == 0)
    return fail("%s: causal needs a dimension of queries, but dims is 0", op);
  if (space.cols < 0)
    return fail("%s: cols is %lld, expected at least 0", op, static_cast<long long>(space.cols));
  *elements = space.cols;
  for (int d = 0; d < space.dims; ++d)
    if (space.size[d] < 0)
      return fail("%s: size[%d] is %lld, expected at least 0", op, d,
                  static_cast<long long>(space.size[d]));
  for (int d = 0; d < space.dims; ++d)
    if (space.size[d] == 0) *elements = 0;
  for (int d = 0; d < space.dims && *elements != 0; ++d)
    if (__builtin_mul_overflow(*elements, space.size[d], elements))
      return fail("%s: the sizes give more elements than 63 bits count", op);
  return BRIDGE_OK;
}

// Computes the bytes [begin, end) that contain the operand; returns false if they do not fit in 63
// bits.
inline bool byte_range(const bridge_row_space& space, const RowOperand& operand, int64_t* begin,
                       int64_t* end) {
  int64_t low = 0, high = operand.cols;
  for (int d = 0; d < space.dims; ++d) {
    int64_t reach = 0;
    if (space.size[d] <= 1) continue;
    if (__builtin_mul_overflow(operand.stride[d], space.size[d] - 1, &reach)) return false;
    int64_t& side = reach < 0 ? low : high;
    if (__builtin_add_overflow(side, reach, &side)) return false;
  }
  const int64_t base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(operand.data));
  return !__builtin_mul_overflow(low, operand.bytes, &low) &&
         !__builtin_mul_overflow(high, operand.bytes, &high) &&
         !__builtin_add_overflow(low, base, begin) && !__builtin_add_overflow(high, base, end);
}

// Lists the dimensions of more than one element in the order of their strides' size, smallest
// first. Returns their number.
inline int by_stride(const bridge_row_space& space, const RowOperand& operand,
                     int (&order)[BRIDGE_MAX_DIMS]) {
  int count = 0;
  for (int d = 0; d < space.dims; ++d) {
    if (space.size[d] <= 1) continue;
    int at = count++;
    for (; at > 0 && magnitude(operand.stride[order[at - 1]]) > magnitude(operand.stride[d]); --at)
      order[at] = order[at - 1];
    order[at] = d;
  }
  return count;
}

// Returns true if rows do not overlap: each stride is at least the span of all smaller ones.
inline bool rows_are_apart(const bridge_row_space& space, const RowOperand& operand) {
  int order[BRIDGE_MAX_DIMS];
  const int count = by_stride(space, operand, order);
  int64_t span = operand.cols;
  for (int i = 0; i < count; ++i) {
    const int64_t stride = magnitude(operand.stride[order[i]]);
    if (stride < span) return false;
    if (__builtin_add_overflow(span, stride * (space.size[order[i]] - 1), &span)) return false;
  }
  return true;
}

// Returns true if the rows fill the memory between their ends, for any order of the dimensions.
inline bool is_dense(const bridge_row_space& space, const RowOperand& operand) {
  int order[BRIDGE_MAX_DIMS];
  const int count = by_stride(space, operand, order);
  int64_t span = operand.cols;
  for (int i = 0; i < count; ++i) {
    const int64_t stride = magnitude(operand.stride[order[i]]);
    if (stride == 0) continue;  // the same memory again
    if (stride != span) return false;
    span *= space.size[order[i]];
  }
  return true;
}

inline bool is_same_layout(const bridge_row_space& space, const RowOperand& a,
                           const RowOperand& b) {
  bool same = a.data == b.data && a.bytes == b.bytes && a.cols == b.cols;
  for (int d = 0; d < space.dims; ++d)
    same = same && (space.size[d] <= 1 || a.stride[d] == b.stride[d]);
  return same;
}

// Returns BRIDGE_OK, or an error of one of `count` operands, the last of which is the output. It
// detects an overlap of the output with an operand if both are dense; otherwise overlaps are the
// caller's duty.
inline bridge_status check_operands(const char* op, const bridge_row_space& space,
                                    const RowOperand* operands, int count, const Refusal& fail) {
  int64_t output_begin = 0, output_end = 0;
  const RowOperand& output = operands[count - 1];
  for (int i = count - 1; i >= 0; --i) {
    const RowOperand& operand = operands[i];
    if (reinterpret_cast<uintptr_t>(operand.data) & static_cast<uintptr_t>(operand.bytes - 1))
      return fail("%s: %s is at %p, expected a multiple of %d bytes", op, operand.name,
                  operand.data, static_cast<int>(operand.bytes));
    int64_t begin = 0, end = 0;
    bool fits = true;
    for (int d = 0; d < space.dims; ++d) fits = fits && operand.stride[d] != INT64_MIN;
    if (!fits || !byte_range(space, operand, &begin, &end))
      return fail("%s: %s has strides that reach beyond 63 bits of address", op, operand.name);
    if (i == count - 1) {
      output_begin = begin, output_end = end;
      if (!rows_are_apart(space, operand))
        return fail("%s: %s has strides with which its rows overlap", op, operand.name);
      continue;
    }
    if (end <= output_begin || output_end <= begin) continue;
    if (is_same_layout(space, operand, output)) continue;
    if (is_dense(space, operand) && is_dense(space, output))
      return fail("%s: %s overlaps %s", op, output.name, operand.name);
  }
  return BRIDGE_OK;
}

}  // namespace check

// Drops dimensions of one element, and merges two adjacent dimensions if every operand steps
// through both alike. The queries of a causal call keep a dimension of their own.
inline void merge_dimensions(bridge_row_space& space, const RowOperand* operands, int count) {
  auto move = [&](int to, int from) {
    space.size[to] = space.size[from];
    for (int i = 0; i < count; ++i) operands[i].stride[to] = operands[i].stride[from];
  };
  int dims = 0;
  for (int d = 0; d < space.dims; ++d) {
    const bool queries = space.causal && d == space.dims - 1;
    if (space.size[d] == 1 && !queries) continue;
    bool together = dims > 0 && !queries;
    for (int i = 0; i < count && together; ++i) {
      int64_t stride = 0;
      together = !__builtin_mul_overflow(operands[i].stride[d], space.size[d], &stride) &&
                 operands[i].stride[dims - 1] == stride;
    }
    if (together) {
      const int64_t merged = space.size[dims - 1] * space.size[d];
      move(dims - 1, d);
      space.size[dims - 1] = merged;
    } else {
      move(dims++, d);
    }
  }
  space.dims = dims;
}

}  // namespace bridge

#endif  // BRIDGE_DRIVERS_ROWS_ROW_OPERANDS_H_
