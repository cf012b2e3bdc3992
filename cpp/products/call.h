// The call of a matrix product, as the kernels of the CPU and of CUDA read it.
#ifndef BRIDGE_PRODUCTS_CALL_H_
#define BRIDGE_PRODUCTS_CALL_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include <initializer_list>

#include "drivers/dtypes.h"

namespace bridge::products {

constexpr int64_t kProductLeaf = 256;  // terms

// Returns true if the arithmetic is float64.
inline bool is_double(const bridge_product& call) {
  const bool is_bias_double = call.bias.data != nullptr && call.bias.dtype == BRIDGE_FLOAT64;
  return is_bias_double || call.a.dtype == BRIDGE_FLOAT64 || call.b.dtype == BRIDGE_FLOAT64 ||
         call.c.dtype == BRIDGE_FLOAT64;
}

// Returns the reason that a call cannot run, or nullptr.
inline const char* wrong_with(const bridge_product& call) {
  if (call.dims < 0 || call.dims > BRIDGE_MAX_DIMS) return "too many dimensions of batches";
  for (int32_t d = 0; d < call.dims; ++d)
    if (call.size[d] < 0) return "a negative size";
  if (call.m < 0 || call.n < 0 || call.k < 0) return "a negative size";
  for (const bridge_product_array* array : {&call.a, &call.b, &call.c, &call.bias}) {
    if (array == &call.bias && array->data == nullptr) continue;
    if (!is_floating(array->dtype)) return "a dtype that is not floating";
    const auto address = reinterpret_cast<uintptr_t>(array->data);
    if (address % static_cast<uintptr_t>(element_bytes(array->dtype)) != 0)
      return "an array that is not aligned to its elements";
  }
  if (call.tensor_cores != 0) {
    const bool has_16_bits = call.a.dtype == BRIDGE_FLOAT16 || call.a.dtype == BRIDGE_BFLOAT16;
    if (!has_16_bits || call.b.dtype != call.a.dtype || is_double(call))
      return "tensor cores for others than two operands of float16 or two of bfloat16";
    if (call.skips_zeros != 0) return "tensor cores for sums with absent terms";
  }
  return nullptr;
}

inline int64_t batches_of(const bridge_product& call) {
  int64_t batches = 1;
  for (int32_t d = 0; d < call.dims; ++d) batches *= call.size[d];
  return batches;
}

// Returns the position of a batch in an array, in bytes.
BRIDGE_HD int64_t offset_of(const bridge_product& call, const bridge_product_array& array,
                            int64_t batch) {
  int64_t offset = 0;
  for (int32_t d = call.dims - 1; d >= 0; --d) {
    offset += batch % call.size[d] * array.stride[d];
    batch /= call.size[d];
  }
  return offset * element_bytes(array.dtype);
}

}  // namespace bridge::products

#endif  // BRIDGE_PRODUCTS_CALL_H_
