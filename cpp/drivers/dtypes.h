// Properties of dtypes, on CPU and CUDA. Their numbers are bridge_dtype; bridge/lang/dtypes.py has
// the same table.
#ifndef BRIDGE_DRIVERS_DTYPES_H_
#define BRIDGE_DRIVERS_DTYPES_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "math/scalar.h"

namespace bridge {

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

// Always inline: the kernels of each instruction set use these functions and must not leave a copy
// that other code could be linked to.
BRIDGE_HD int64_t element_bytes(int32_t dtype) { return 1 << (kBytesLog2 >> 4 * dtype & 15); }
BRIDGE_HD bool is_signed(int32_t dtype) { return (kIsSigned >> dtype & 1) != 0; }
BRIDGE_HD bool is_floating(int32_t dtype) {
  return dtype >= BRIDGE_FLOAT16 && dtype <= BRIDGE_FLOAT64;
}
// True for the dtypes of quantised numbers.
BRIDGE_HD bool is_of_8_bits(int32_t dtype) {
  return dtype == BRIDGE_INT8 || dtype >= BRIDGE_FLOAT8_E4M3FN;
}

}  // namespace bridge

#endif  // BRIDGE_DRIVERS_DTYPES_H_
