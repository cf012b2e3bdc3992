// Elements of any dtype, on CPU and CUDA: how long they are, and where they are, and the integers
// among them.
#ifndef BRIDGE_INTERPRETER_INTEGERS_H_
#define BRIDGE_INTERPRETER_INTEGERS_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "math/scalar.h"

namespace bridge::interpreter {

BRIDGE_HD int64_t element_bytes(int32_t dtype) {
  switch (dtype) {
    case BRIDGE_BOOL:
    case BRIDGE_UINT8:
    case BRIDGE_INT8:
      return 1;
    case BRIDGE_FLOAT16:
    case BRIDGE_BFLOAT16:
    case BRIDGE_INT16:
    case BRIDGE_UINT16:
      return 2;
    case BRIDGE_FLOAT32:
    case BRIDGE_INT32:
    case BRIDGE_UINT32:
      return 4;
    default:
      return 8;
  }
}

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
BRIDGE_HD int64_t integer_at(const void* from) {
  return static_cast<int64_t>(*static_cast<const Integer*>(from));
}

BRIDGE_HD int64_t load_integer(int32_t dtype, const void* from) {
  switch (dtype) {
    case BRIDGE_BOOL:
    case BRIDGE_UINT8:
      return integer_at<uint8_t>(from);
    case BRIDGE_INT8:
      return integer_at<int8_t>(from);
    case BRIDGE_INT16:
      return integer_at<int16_t>(from);
    case BRIDGE_UINT16:
      return integer_at<uint16_t>(from);
    case BRIDGE_INT32:
      return integer_at<int32_t>(from);
    case BRIDGE_UINT32:
      return integer_at<uint32_t>(from);
    default:
      return integer_at<int64_t>(from);
  }
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_INTEGERS_H_
