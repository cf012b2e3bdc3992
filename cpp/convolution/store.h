// Results and biases of convolutions in memory. Include this only in files that are compiled once
// for each instruction set.
#ifndef BRIDGE_CONVOLUTION_STORE_H_
#define BRIDGE_CONVOLUTION_STORE_H_

#include "convolution/views.h"
#include "cpu/tile.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class T, class Real>
void store_apart(char* to, int64_t step, const Real* sums, int64_t count) {
  T* at = reinterpret_cast<T*>(to);
  for (int64_t j = 0; j < count; ++j, at += step) *at = math::round_to<T>(sums[j]);
}

// Rounds sums into elements that are `step` apart.
template <class Real>
void store_line(int32_t dtype, char* to, int64_t step, const Real* sums, int64_t count) {
  if (step == 1) return store_run(dtype, to, sums, count);
  switch (dtype) {
    case BRIDGE_FLOAT16:
      return store_apart<math::float16>(to, step, sums, count);
    case BRIDGE_BFLOAT16:
      return store_apart<math::bfloat16>(to, step, sums, count);
    case BRIDGE_FLOAT32:
      return store_apart<float>(to, step, sums, count);
    default:
      if constexpr (sizeof(Real) == sizeof(double)) store_apart<double>(to, step, sums, count);
  }
}

template <class Real>
void load_bias(const convolution::Problem& problem, int64_t first, int64_t count, Real* to) {
  const int64_t step = problem.bias_stride * element_bytes(problem.bias_dtype);
  for (int64_t j = 0; j < count; ++j)
    load_run(problem.bias_dtype, problem.bias + (first + j) * step, to + j, 1);
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_CONVOLUTION_STORE_H_
