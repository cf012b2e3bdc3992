// Positions of elements, and loads of integers of any dtype, on CPU and CUDA.
#ifndef BRIDGE_DRIVERS_INTEGERS_H_
#define BRIDGE_DRIVERS_INTEGERS_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "drivers/dtypes.h"

namespace bridge::interpreter {

// Returns the position (elements from the row's start) of column `col` of half `half`, for rows of
// `cols` columns. `pairs`: as in bridge_program_array.
BRIDGE_HD int64_t element_of(int32_t pairs, int64_t col_stride, int64_t cols, int32_t half,
                             int64_t col) {
  if (pairs > 1) return static_cast<int64_t>(static_cast<uint64_t>(col) / pairs) * col_stride;
  return pairs != 0 ? half * (col_stride / 2) + col * col_stride : (half * cols + col) * col_stride;
}
BRIDGE_HD int64_t element_of(const bridge_program_array& array, int64_t cols, int32_t half,
                             int64_t col) {
  return element_of(array.pairs, array.col_stride, cols, half, col);
}

template <class Integer>
BRIDGE_HD uint64_t bits_at(const void* from) {
  return *static_cast<const Integer*>(from);
}

// Returns an integer of any dtype as int64. A uint64 above INT64_MAX is read as INT64_MAX: it stays
// larger than any column, and never becomes negative.
BRIDGE_HD int64_t load_integer(int32_t dtype, const void* from) {
  const int64_t bytes = element_bytes(dtype);
  const uint64_t bits = bytes == 8   ? bits_at<uint64_t>(from)
                        : bytes == 4 ? bits_at<uint32_t>(from)
                        : bytes == 2 ? bits_at<uint16_t>(from)
                                     : bits_at<uint8_t>(from);
  const auto others = static_cast<int>(64 - 8 * bytes);
  constexpr uint64_t kLargest = INT64_MAX;
  return is_signed(dtype) ? static_cast<int64_t>(bits << others) >> others
                          : static_cast<int64_t>(bits < kLargest ? bits : kLargest);
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_DRIVERS_INTEGERS_H_
