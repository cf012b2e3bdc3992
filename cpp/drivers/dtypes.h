// Properties of a dtype that every op needs. Host and device code.
#ifndef BRIDGE_DRIVERS_DTYPES_H_
#define BRIDGE_DRIVERS_DTYPES_H_

#include <bridge/bridge.h>
#include <stdint.h>

namespace bridge {

// Always inline: the kernels of each instruction set use these functions and must not leave a copy
// that other code could be linked to.
__attribute__((always_inline)) constexpr bool is_16_bit(int32_t dtype) {
  return dtype == BRIDGE_FLOAT16 || dtype == BRIDGE_BFLOAT16;
}
__attribute__((always_inline)) constexpr int64_t dtype_bytes(int32_t dtype) {
  return is_16_bit(dtype) ? 2 : dtype == BRIDGE_FLOAT32 ? 4 : 8;
}

}  // namespace bridge

#endif  // BRIDGE_DRIVERS_DTYPES_H_
