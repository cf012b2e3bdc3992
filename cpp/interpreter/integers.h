// Elements of any dtype, on CPU and CUDA: how long they are, and where they are, and the integers
// among them.
#ifndef BRIDGE_INTERPRETER_INTEGERS_H_
#define BRIDGE_INTERPRETER_INTEGERS_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "math/scalar.h"

namespace bridge::interpreter {

// Four bits for each dtype: the logarithm of its bytes. A switch would be a jump on a GPU whose
// place nothing knows before.
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

// Where in a row of a call of so many columns a number of an array is: of half 0, or of either
// half.
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

// What is beyond the largest number with a sign, as the upper half of uint64 is, is read as that
// number: it stays larger than any column, and is never negative.
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

#endif  // BRIDGE_INTERPRETER_INTEGERS_H_
