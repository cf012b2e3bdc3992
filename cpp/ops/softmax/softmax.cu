// softmax on CUDA: chooses a kernel, lays the call under its threads and enqueues it.
#include "ops/softmax/softmax.cuh"

#include <bridge/bridge.h>

#include "cuda/last_error.h"
#include "ops/softmax/softmax.h"
#include "ops/softmax/softmax_cuda.h"
#include "walks/rows/row_launch.cuh"

namespace bridge::softmax {
namespace {

using math::bfloat16;
using math::float16;
using rows::ceil_divide;

using RowKernel = rows::RowKernel<Params>;
using Kernel = rows::Kernel<Params>;

// How many threads have a row, and how many vectors a thread: about as many of both as the row
// fills, but enough vectors to share the cost of a row among. The last of a list goes as far as the
// registers of a block do.
template <class T, class Precision>
struct Kernels {
  static constexpr int kVector = Pack<T>::kCount;
  static constexpr int kWide = kVector == 2 ? 32 : 8;  // threads for a row of 256 columns
  template <bool kIsAligned, int kGroup, int kVectors>
  using Group = RowsKernel<rows::GroupTeam<T, kGroup, kVectors>, Precision, kIsAligned>;
  template <bool kIsAligned>
  using Block = RowsKernel<rows::BlockTeam<T, sizeof(T) == 8 ? 16 : 32>, Precision, kIsAligned>;

  static constexpr RowKernel kAligned[6] = {
      rows::row_kernel<Group<true, 32 / kVector, 1>>(),
      rows::row_kernel<Group<true, 32 / kVector, 4>>(),
      rows::row_kernel<Group<true, kWide, 256 / kVector / kWide>>(),
      rows::row_kernel<Group<true, kWide == 8 ? 16 : 32, 512 / kVector / (kWide == 8 ? 16 : 32)>>(),
      rows::row_kernel<Group<true, 32, 32 / kVector>>(),
      rows::row_kernel<Block<true>>()};
  static constexpr RowKernel kAny[4] = {
      rows::row_kernel<Group<false, 32 / kVector, 1>>(),
      rows::row_kernel<Group<false, kWide, 256 / kVector / kWide>>(),
      rows::row_kernel<Group<false, 32, 32 / kVector>>(), rows::row_kernel<Block<false>>()};
  static constexpr Kernel kSegments[] = {
      rows::make_kernel<SegmentKernel<T, Precision, Step::largest>>(),
      rows::make_kernel<SegmentKernel<T, Precision, Step::sum>>(),
      rows::make_kernel<SegmentKernel<T, Precision, Step::store>>()};
};

struct KernelLists {
  rows::KernelList<Params> aligned;
  rows::KernelList<Params> any;
  const Kernel* segments;  // by Step
};

template <class T, class Precision>
constexpr KernelLists kernel_lists() {
  using K = Kernels<T, Precision>;
  return {K::kAligned, K::kAny, K::kSegments};
}

// By bridge_dtype.
constexpr KernelLists kKernels[] = {
    kernel_lists<float16, math::SingleFor16Bits>(), kernel_lists<bfloat16, math::SingleFor16Bits>(),
    kernel_lists<float, math::Single>(), kernel_lists<double, math::Double>()};

size_t real_bytes(const bridge_softmax& call) {
  return call.dtype == BRIDGE_FLOAT64 ? sizeof(double) : sizeof(float);
}

// Of a term of a row's sum (math::SoftmaxTerm).
size_t term_bytes(const bridge_softmax& call) {
  return call.dtype == BRIDGE_FLOAT32 ? sizeof(math::SoftmaxTerm<math::Single>) : real_bytes(call);
}

bool is_segmented(const bridge_softmax& call) {
  return call.space.cols > kKernels[call.dtype].any.most_cols();
}

int64_t rows_at_once(const bridge_softmax& call) {
  return rows::rows_at_once(row_count(call.space), call.space.cols * dtype_bytes(call.dtype));
}

size_t workspace_bytes_of(const bridge_softmax& call) {
  if (!is_segmented(call)) return 0;
  const int64_t rows = rows_at_once(call);
  const int64_t segments = ceil_divide(call.space.cols, rows::kSegmentCols);
  return rows::node_bytes(rows, segments, real_bytes(call)) +
         rows::node_bytes(rows, segments, term_bytes(call));
}

Params make_params(const bridge_softmax& call) {
  bridge_softmax copy = call;
  const int64_t bytes = dtype_bytes(call.dtype);
  const RowOperand operands[kArrays] = {
      {"x", copy.x.data, copy.x.stride, copy.space.cols, bytes},
      {"mask", const_cast<uint8_t*>(copy.mask.data), copy.mask.stride, copy.space.cols, 1},
      {"output", copy.output.data, copy.output.stride, copy.space.cols, bytes}};
  Params params{};
  params.layout = rows::lay_out(copy.space, operands);
  params.x = static_cast<const char*>(call.x.data);
  params.mask = call.mask.data;
  params.output = static_cast<char*>(call.output.data);
  params.mask_for_rows = call.mask.col_stride == 0;
  params.scale_single = math::softmax_scale<float>(call.scale);
  params.scale_double = math::softmax_scale<double>(call.scale);
  return params;
}

// Whether every vector of every row is whole and lies at a multiple of its size.
bool is_aligned(const bridge_softmax& call, const Params& params) {
  const int64_t vector = 16 / dtype_bytes(call.dtype);
  return call.space.cols % vector == 0 && rows::is_aligned(params.layout, kX, params.x, 16) &&
         rows::is_aligned(params.layout, kOutput, params.output, 16) &&
         (params.mask == nullptr || params.mask_for_rows ||
          rows::is_aligned(params.layout, kMask, params.mask, vector));
}

template <class Precision>
const char* enqueue_segments(const bridge_softmax& call, Params& params, char* workspace,
                             void* stream) {
  using Real = typename Precision::real;
  using Term = math::SoftmaxTerm<Precision>;
  const int64_t at_once = rows_at_once(call);
  return rows::for_each_batch(params, at_once, [&](simt::Grid grid) -> const char* {
    const int64_t rows = params.rows, segments = params.segments;
    params.largest = rows::nodes_at(workspace, rows, segments, sizeof(Real));
    params.sums = rows::nodes_at(workspace + rows::node_bytes(at_once, segments, sizeof(Real)),
                                 rows, segments, sizeof(Term));
    auto launch = [&](Step step) {
      return kKernels[call.dtype].segments[static_cast<int>(step)].launch(grid, 0, stream, params);
    };
    const char* error = launch(Step::largest);
    if (!error) error = rows::enqueue_levels<Largest, Real>(params.largest, rows, segments, stream);
    if (!error) error = launch(Step::sum);
    if (!error) error = rows::enqueue_levels<Sum, Term>(params.sums, rows, segments, stream);
    return error ? error : launch(Step::store);
  });
}

const char* enqueue(const bridge_softmax& call, void* workspace, void* stream) {
  Params params = make_params(call);
  if (!is_segmented(call)) {
    const KernelLists& lists = kKernels[call.dtype];
    return (is_aligned(call, params) ? lists.aligned : lists.any).enqueue(params, stream);
  }
  char* memory = static_cast<char*>(workspace);
  if (call.dtype == BRIDGE_FLOAT64)
    return enqueue_segments<math::Double>(call, params, memory, stream);
  if (call.dtype == BRIDGE_FLOAT32)
    return enqueue_segments<math::Single>(call, params, memory, stream);
  return enqueue_segments<math::SingleFor16Bits>(call, params, memory, stream);
}

}  // namespace

const char* load_kernels() {
  for (const KernelLists& lists : kKernels) {
    if (const char* error = lists.aligned.load()) return error;
    if (const char* error = lists.any.load()) return error;
    for (int i = 0; i < 3; ++i) {
      if (const char* error = lists.segments[i].load()) return error;
    }
  }
  if (const char* error = rows::load_levels<Largest>()) return error;
  if (const char* error = rows::load_levels<Sum>()) return error;
  return simt::load<rows::NodesKernel<Sum, math::SoftmaxTerm<math::Single>>>();
}

}  // namespace bridge::softmax

extern "C" BRIDGE_EXPORT size_t bridge_softmax_cuda_workspace(const bridge_softmax* call) {
  char message[bridge::cuda::kMessageBytes];
  if (call == nullptr || bridge::validate(*call, message, sizeof message) != BRIDGE_OK) return 0;
  return bridge::softmax::workspace_bytes_of(*call);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_softmax_cuda(const bridge_softmax* call,
                                                           void* workspace, size_t workspace_bytes,
                                                           void* stream) {
  using namespace bridge;
  constexpr const char* kName = "softmax";
  if (call == nullptr) return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, "call is NULL");
  const bridge_status status = validate(*call, cuda::error_message(), cuda::kMessageBytes);
  if (status != BRIDGE_OK) return status;
  if (row_count(call->space) == 0 || call->space.cols == 0) return BRIDGE_OK;
  const size_t needed = softmax::workspace_bytes_of(*call);
  if (!cuda::is_enough(kName, workspace, workspace_bytes, needed)) return BRIDGE_INVALID_ARGUMENT;
  int entered = -1;
  const char* error = simt::make_current(stream, call->output.data, &entered);
  if (error == nullptr) error = softmax::enqueue(*call, workspace, stream);
  simt::restore_current(entered);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
}
