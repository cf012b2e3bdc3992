// Sizes and positions of elements of any dtype, and loads of integers, on CPU and CUDA.
#ifndef BRIDGE_PROGRAM_INTEGERS_H_
#define BRIDGE_PROGRAM_INTEGERS_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "math/scalar.h"

namespace bridge::interpreter {

// Four bits for each dtype: log2 of its bytes. A GPU would compile a switch to an indirect jump,
// which it cannot predict.
constexpr uint64_t bytes_log2_of(int32_t dtype, uint64_t log2) { return log2 << 4 * dtype; }
constexpr uint64_t kBytesLog2 =
    bytes_log2_of(BRIDGE_FLOAT16, 1) | bytes_log2_of(BRIDGE_BFLOAT16, 1) |
    bytes_log2_of(BRIDGE_FLOAT32, 2) | bytes_log2_of(BRIDGE_FLOAT64, 3) |
    bytes_log2_of(BRIDGE_INT16, 1) | bytes_log2_of(BRIDGE_UINT16, 1) |
    bytes_log2_of(BRIDGE_INT32, 2) | bytes_log2_of(BRIDGE_UINT32, 2) |
    bytes_log2_of(BRIDGE_INT64, 3) | bytes_log2_of(BRIDGE_UINT64, 3);
constexpr uint32_t kIsSigned =
    1u << BRIDGE_INT8 | 1u << BRIDGE_INT16 | 1u << BRIDGE_INT32 | 1u << BRIDGE_INT64;

BRIDGE_HD int64_t element_bytes(int32_t dtype) { return 1 << (kBytesLog2 >> 4 * dtype & 15); }

// Returns the position (elements from the row's start) of column `col` of half `half`, for rows of
// `cols` columns. `pairs`: the two halves alternate.
BRIDGE_HD int64_t element_of(bool pairs, int64_t col_stride, int64_t cols, int32_t half,
                             int64_t col) {
  return pairs ? half * (col_stride / 2) + col * col_stride : (half * cols + col) * col_stride;
}
BRIDGE_HD int64_t element_of(const bridge_program_array& array, int64_t cols, int32_t half,
                             int64_t col) {
  return element_of(array.pairs != 0, array.col_stride, cols, half, col);
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
  const bool is_signed = (kIsSigned >> dtype & 1) != 0;
  constexpr uint64_t kLargest = INT64_MAX;
  return is_signed ? static_cast<int64_t>(bits << others) >> others
                   : static_cast<int64_t>(bits < kLargest ? bits : kLargest);
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_INTEGERS_H_
