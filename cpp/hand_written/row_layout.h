// The rows of a call in the form for kernels: numbered from 0, found by few divisions.
#ifndef BRIDGE_HAND_WRITTEN_ROW_LAYOUT_H_
#define BRIDGE_HAND_WRITTEN_ROW_LAYOUT_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include <initializer_list>

#include "hand_written/row_operands.h"

namespace bridge::rows {

// The layout of kArrays arrays over the same rows.
template <int kArrays>
struct RowLayout {
  int64_t rows;
  int64_t cols;
  int32_t dims;  // at least 1
  int64_t size[BRIDGE_MAX_DIMS];
  int64_t step[kArrays][BRIDGE_MAX_DIMS];  // in bytes
};

// Lays out the rows of a call. `operands` point into the call of `space`, and both are changed:
// dimensions are merged as far as the strides allow. An operand without memory is absent.
template <int kArrays>
RowLayout<kArrays> lay_out(RowSpace& space, const RowOperand (&operands)[kArrays]) {
  RowLayout<kArrays> layout{};
  layout.rows = row_count(space);
  layout.cols = space.cols;
  RowOperand present[kArrays];
  int count = 0;
  for (const RowOperand& operand : operands) {
    if (operand.data != nullptr) present[count++] = operand;
  }
  merge_dimensions(space, present, count);
  layout.dims = space.dims > 0 ? space.dims : 1;
  layout.size[0] = 1;
  for (int d = 0; d < space.dims; ++d) {
    layout.size[d] = space.size[d];
    for (int a = 0; a < kArrays; ++a) {
      if (operands[a].data != nullptr) {
        layout.step[a][d] = operands[a].stride[d] * operands[a].bytes;
      }
    }
  }
  return layout;
}

// Renumbers the rows so that rows that read the same row of `array` follow one another, while a
// cache holds it.
template <int kArrays>
void join_readers(RowLayout<kArrays>& layout, int array) {
  const RowLayout<kArrays> given = layout;
  int to = 0;
  for (const bool are_readers : {false, true}) {
    for (int d = 0; d < given.dims; ++d) {
      if ((given.step[array][d] == 0) != are_readers) continue;
      layout.size[to] = given.size[d];
      for (int a = 0; a < kArrays; ++a) layout.step[a][to] = given.step[a][d];
      ++to;
    }
  }
}

// Returns true if every row of the operand starts at a multiple of `alignment` bytes.
template <int kArrays>
bool is_aligned(const RowLayout<kArrays>& layout, int array, const void* data, int64_t alignment) {
  bool aligned = reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) == 0;
  for (int d = 0; d < layout.dims; ++d) aligned &= layout.step[array][d] % alignment == 0;
  return aligned;
}

}  // namespace bridge::rows

#endif  // BRIDGE_HAND_WRITTEN_ROW_LAYOUT_H_
