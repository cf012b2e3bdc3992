// Convolutions on tensor cores: chooses the kernel of a product.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "convolution/launch.cuh"
#include "convolution/tensor_tile.cuh"

namespace bridge::convolution {
namespace {

using math::bfloat16;
using math::float16;

// The larger tile first.
constexpr int kSizes = 2;
template <class Element, Runs kRunsA, Runs kRunsB>
constexpr Kernel kOfRuns[kSizes] = {
    products::kernel_of<TensorConvolutionKernel<int32_t, Element, kRunsA, kRunsB, 2, 4, 64, 32>>(),
    products::kernel_of<TensorConvolutionKernel<int32_t, Element, kRunsA, kRunsB, 2, 2, 32, 32>>()};
// Patches with adjacent channels, and weights with adjacent terms or columns; for the gradient of
// weights two arrays with adjacent channels.
template <class Element>
constexpr const Kernel* kOfBothRuns[] = {kOfRuns<Element, Runs::terms, Runs::terms>,
                                         kOfRuns<Element, Runs::terms, Runs::lanes>,
                                         kOfRuns<Element, Runs::lanes, Runs::lanes>};
template <class Element>
constexpr Kernel kOfNoRuns = products::kernel_of<
    TensorConvolutionKernel<int32_t, Element, Runs::none, Runs::none, 2, 2, 32, 32>>();
// For views that are not small.
template <class Element>
constexpr Kernel kOfLarge = products::kernel_of<
    TensorConvolutionKernel<int64_t, Element, Runs::none, Runs::none, 2, 2, 16, 16>>();

constexpr int64_t kRun = 8;  // elements of 16 bytes

// Returns true if runs along `side` are aligned, and in the array as a whole or not at all.
bool has_runs(const View& view, int64_t group_step, const Axis& side, const Axis& other) {
  if (side.stride[kAxisDims - 1] != 1 || side.size[kAxisDims - 1] % kRun != 0) return false;
  if (reinterpret_cast<uintptr_t>(view.data) % 16 != 0) return false;
  if (view.offset % kRun != 0 || group_step % kRun != 0) return false;
  for (const Axis* axis : {&side, &other})
    for (int d = 0; d < kAxisDims; ++d) {
      if (axis == &side && d == kAxisDims - 1) continue;
      if (axis->size[d] > 1 && axis->stride[d] % kRun != 0) return false;
    }
  return true;
}

// Returns true if the numbers, offsets and coordinates of a view fit int32_t, and those of a tile
// and a step behind its end.
bool is_small(const View& view) {
  constexpr double kMost = 1 << 30, kBehind = 256;
  const auto product = [](int64_t count, int64_t step) {
    return (static_cast<double>(count) + kBehind) * std::abs(static_cast<double>(step));
  };
  double most = 0;
  for (const Axis* axis : {&view.lanes, &view.terms}) {
    double elements = 0;
    for (int d = 0; d < kAxisDims; ++d) elements += product(axis->size[d], axis->stride[d]);
    most = std::max({most, elements, static_cast<double>(axis->count()) + kBehind});
  }
  if (view.places == Places::none) return most < kMost;
  const bool are_lanes = view.places == Places::lanes;
  const Axis& places = are_lanes ? view.lanes : view.terms;
  const Axis& others = are_lanes ? view.terms : view.lanes;
  for (int d = 0; d < kSpace; ++d)
    most = std::max({most, static_cast<double>(view.size[d]),
                     std::abs(static_cast<double>(view.start[d])) +
                         product(places.size[d + 1], view.place_step[d]) +
                         product(others.size[d], view.window_step[d])});
  return most < kMost;
}

Runs runs_of(const View& view, int64_t group_step) {
  // Neighbouring places have coordinates of their own.
  if (view.places != Places::terms && has_runs(view, group_step, view.terms, view.lanes))
    return Runs::terms;
  if (view.places != Places::lanes && has_runs(view, group_step, view.lanes, view.terms))
    return Runs::lanes;
  return Runs::none;
}

template <class Element>
const Kernel& chosen(const ConvolutionParams& params, int64_t groups) {
  if (!is_small(params.problem.a) || !is_small(params.problem.b)) return kOfLarge<Element>;
  const Runs a = runs_of(params.problem.a, params.steps.a);
  const Runs b = runs_of(params.problem.b, params.steps.b);
  if (a == Runs::none || b == Runs::none || (a == Runs::lanes && b == Runs::terms))
    return kOfNoRuns<Element>;
  const Kernel* const kernels = kOfBothRuns<Element>[a == Runs::lanes ? 2 : b == Runs::lanes];
  return tiles_of(params, kernels[0], groups) > simt::kMultiprocessors ? kernels[0] : kernels[1];
}

template <class Element>
const char* load_all() {
  for (const Kernel* kernels : kOfBothRuns<Element>)
    for (int i = 0; i < kSizes; ++i)
      if (const char* error = kernels[i].load()) return error;
  const char* const error = kOfNoRuns<Element>.load();
  return error == nullptr ? kOfLarge<Element>.load() : error;
}

}  // namespace

const Kernel& tensor_kernel_for(const ConvolutionParams& params, int64_t groups) {
  return params.problem.a.dtype == BRIDGE_FLOAT16 ? chosen<float16>(params, groups)
                                                  : chosen<bfloat16>(params, groups);
}

const char* load_tensor_kernels() {
  const char* const error = load_all<float16>();
  return error == nullptr ? load_all<bfloat16>() : error;
}

}  // namespace bridge::convolution
