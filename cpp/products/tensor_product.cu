// Products on tensor cores: chooses the kernel of a call.
#include "products/tensor_product.cuh"

#include "products/launch.cuh"

namespace bridge::products {
namespace {

using math::bfloat16;
using math::float16;

// The largest tile first; a tile of few rows last.
constexpr int kSizes = 3;
template <class Element, Runs kRunsA, Runs kRunsB>
constexpr Kernel kOfRuns[kSizes] = {
    kernel_of<TensorKernel<Element, kRunsA, kRunsB, 2, 4, 64, 32>>(),
    kernel_of<TensorKernel<Element, kRunsA, kRunsB, 2, 2, 32, 32>>(),
    kernel_of<TensorKernel<Element, kRunsA, kRunsB, 1, 4, 16, 16>>()};
template <class Element>
constexpr const Kernel* kOfBothRuns[2][2] = {
    {kOfRuns<Element, Runs::terms, Runs::terms>, kOfRuns<Element, Runs::terms, Runs::lanes>},
    {kOfRuns<Element, Runs::lanes, Runs::terms>, kOfRuns<Element, Runs::lanes, Runs::lanes>}};
template <class Element>
constexpr Kernel kOfNoRuns =
    kernel_of<TensorKernel<Element, Runs::none, Runs::none, 2, 2, 32, 32>>();

template <class Element>
const Kernel& chosen(const bridge_product& call) {
  const bool are_vectors =
      has_vectors(call, call.a, 2, call.m, call.a.row_stride, call.a.col_stride) &&
      has_vectors(call, call.b, 2, call.n, call.b.col_stride, call.b.row_stride);
  if (!are_vectors) return kOfNoRuns<Element>;
  const bool has_lanes_a = call.a.row_stride == 1, has_lanes_b = call.b.col_stride == 1;
  const Kernel* const kernels = kOfBothRuns<Element>[has_lanes_a][has_lanes_b];
  if (call.m <= kernels[kSizes - 1].rows) return kernels[kSizes - 1];
  return tiles_of(call, kernels[0]) > simt::kMultiprocessors ? kernels[0] : kernels[1];
}

template <class Element>
const char* load_all() {
  for (const auto& of_a : kOfBothRuns<Element>)
    for (const Kernel* kernels : of_a)
      for (int i = 0; i < kSizes; ++i)
        if (const char* error = kernels[i].load()) return error;
  return kOfNoRuns<Element>.load();
}

}  // namespace

const Kernel& tensor_kernel_for(const bridge_product& call) {
  return call.a.dtype == BRIDGE_FLOAT16 ? chosen<float16>(call) : chosen<bfloat16>(call);
}

const char* load_tensor_kernels() {
  const char* const error = load_all<float16>();
  return error == nullptr ? load_all<bfloat16>() : error;
}

}  // namespace bridge::products
