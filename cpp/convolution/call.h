// The call of a convolution, as the kernels of the CPU and of CUDA read it.
#ifndef BRIDGE_CONVOLUTION_CALL_H_
#define BRIDGE_CONVOLUTION_CALL_H_

#include <bridge/convolution.h>
#include <stdint.h>

#include <initializer_list>

#include "drivers/dtypes.h"

namespace bridge::convolution {

constexpr int kSpace = BRIDGE_CONVOLUTION_DIMS;

inline bool is_double(const bridge_convolution& call) {
  if (call.bias.data != nullptr && call.bias.dtype == BRIDGE_FLOAT64) return true;
  return call.x.dtype == BRIDGE_FLOAT64 || call.w.dtype == BRIDGE_FLOAT64 ||
         call.y.dtype == BRIDGE_FLOAT64;
}

// Returns the array that the call writes.
inline const bridge_convolution_array& result_of(const bridge_convolution& call) {
  return call.kind == BRIDGE_CONVOLUTION_FORWARD ? call.y
         : call.kind == BRIDGE_CONVOLUTION_INPUT ? call.x
                                                 : call.w;
}

inline const char* wrong_sizes(const bridge_convolution& call) {
  if (call.images < 0 || call.in_channels < 0 || call.out_channels < 0) return "a negative size";
  if (call.groups < 1) return "groups below 1";
  if (call.in_channels % call.groups != 0 || call.out_channels % call.groups != 0)
    return "channels that groups do not divide";
  // Every coordinate, such as place * stride - padding + position * dilation, fits an int64_t.
  constexpr int64_t kMost = int64_t{1} << 60;
  for (int d = 0; d < kSpace; ++d) {
    if (call.in[d] < 0 || call.kernel[d] < 0 || call.out[d] < 0) return "a negative size";
    if (call.stride[d] < 1) return "a stride below 1";
    if (call.dilation[d] < 1) return "a dilation below 1";
    int64_t places = 0, positions = 0;
    if (call.in[d] > kMost || call.kernel[d] > kMost || call.out[d] > kMost ||
        __builtin_mul_overflow(call.out[d] + 1, call.stride[d], &places) || places > kMost ||
        __builtin_mul_overflow(call.kernel[d] + 1, call.dilation[d], &positions) ||
        positions > kMost || call.padding[d] > kMost || call.padding[d] < -kMost)
      return "a size, stride, padding or dilation that is too large";
  }
  return nullptr;
}

// Returns the reason that a call cannot run, or nullptr.
inline const char* wrong_with(const bridge_convolution& call) {
  if (call.kind < BRIDGE_CONVOLUTION_FORWARD || call.kind > BRIDGE_CONVOLUTION_WEIGHT)
    return "a kind that is no result";
  if (const char* wrong = wrong_sizes(call)) return wrong;
  for (const bridge_convolution_array* array : {&call.x, &call.w, &call.y, &call.bias}) {
    if (array == &call.bias && array->data == nullptr) continue;
    if (!is_floating(array->dtype)) return "a dtype that is not floating";
    const auto address = reinterpret_cast<uintptr_t>(array->data);
    if (address % static_cast<uintptr_t>(element_bytes(array->dtype)) != 0)
      return "an array that is not aligned to its elements";
  }
  if (call.kind == BRIDGE_CONVOLUTION_WEIGHT && call.bias.data != nullptr)
    return "a bias for the gradient of weights";
  if (call.tensor_cores != 0) {
    const bridge_convolution_array& result = result_of(call);
    const bridge_convolution_array* const arrays[] = {&call.x, &call.w, &call.y};
    int32_t dtype = -1;
    for (const bridge_convolution_array* array : arrays) {
      if (array == &result) continue;
      const bool is_first = dtype < 0;
      if (is_first) dtype = array->dtype;
      if (dtype != array->dtype || (dtype != BRIDGE_FLOAT16 && dtype != BRIDGE_BFLOAT16))
        return "tensor cores for others than two operands of float16 or two of bfloat16";
    }
    if (is_double(call)) return "tensor cores with an array of float64";
  }
  return nullptr;
}

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_CALL_H_
