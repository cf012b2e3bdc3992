// The calls of the softmax programs as their CUDA kernels read them. Host code.
#ifndef BRIDGE_HAND_WRITTEN_SOFTMAX_CALL_H_
#define BRIDGE_HAND_WRITTEN_SOFTMAX_CALL_H_

#include <bridge/bridge.h>

#include "drivers/dtypes.h"
#include "hand_written/row_operands.h"

namespace bridge {

// Returns true if the call has elements, and those of a row are adjacent in the result and in the
// first `floats` operands.
inline bool has_adjacent_columns(const bridge_program& call, int floats) {
  bool is_adjacent = call.cols > 0 && call.result[0].col_stride == 1;
  for (int i = 0; i < floats; ++i) is_adjacent = is_adjacent && call.operand[i].col_stride == 1;
  return is_adjacent || call.cols == 1;
}

// Returns true if `last` is null or has a dtype that the kernels read.
inline bool reads_last(const bridge_program_array* last) {
  return last == nullptr || last->dtype == BRIDGE_INT32 || last->dtype == BRIDGE_INT64;
}

inline RowSpace space_of(const bridge_program& call) {
  RowSpace space{call.dims, {}, call.cols};
  for (int d = 0; d < call.dims; ++d) space.size[d] = call.size[d];
  return space;
}

// A copy of an array's strides, which merging changes.
struct Strides {
  int64_t of[BRIDGE_MAX_DIMS] = {};

  RowOperand operand(const bridge_program& call, const bridge_program_array* array) {
    if (array == nullptr) return {nullptr, of, 1};
    for (int d = 0; d < call.dims; ++d) of[d] = array->stride[d];
    return {array->data, of, element_bytes(array->dtype)};
  }
};

}  // namespace bridge

#endif  // BRIDGE_HAND_WRITTEN_SOFTMAX_CALL_H_
