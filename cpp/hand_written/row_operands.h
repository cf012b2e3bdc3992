// Rows in arrays of any strides, and merging of their dimensions. Host code.
#ifndef BRIDGE_HAND_WRITTEN_ROW_OPERANDS_H_
#define BRIDGE_HAND_WRITTEN_ROW_OPERANDS_H_

#include <bridge/bridge.h>
#include <stdint.h>

namespace bridge {

// Rows of `cols` columns, numbered by `dims` dimensions.
struct RowSpace {
  int32_t dims;
  int64_t size[BRIDGE_MAX_DIMS];
  int64_t cols;
};

// One array of a row space; `bytes` are those of an element.
struct RowOperand {
  const void* data;
  int64_t* stride;
  int64_t bytes;
};

// Returns the number of rows of a checked space; 1 without dimensions.
inline int64_t row_count(const RowSpace& space) {
  int64_t rows = 1;
  for (int d = 0; d < space.dims; ++d) rows *= space.size[d];
  return rows;
}

// Drops dimensions of one element, and merges two adjacent dimensions if every operand steps
// through both alike.
inline void merge_dimensions(RowSpace& space, const RowOperand* operands, int count) {
  auto move = [&](int to, int from) {
    space.size[to] = space.size[from];
    for (int i = 0; i < count; ++i) operands[i].stride[to] = operands[i].stride[from];
  };
  int dims = 0;
  for (int d = 0; d < space.dims; ++d) {
    if (space.size[d] == 1) continue;
    bool together = dims > 0;
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

#endif  // BRIDGE_HAND_WRITTEN_ROW_OPERANDS_H_
