// softmax on CUDA: chooses a kernel, lays the call under its threads and enqueues it.
#include "ops/softmax/softmax.cuh"

#include <bridge/bridge.h>

#include "cuda/op_entry.h"
#include "drivers/rows/row_launch.cuh"
#include "ops/softmax/softmax.h"
#include "ops/softmax/softmax_cuda.h"

namespace bridge::softmax {
namespace {

using math::bfloat16;
using math::float16;
using rows::ceil_divide;
using rows::real_bytes;

using Kernel = rows::Kernel<Params>;

template <class T, class Precision>
struct Kernels {
  template <class Team, bool kIsAligned>
  using OfTeam = RowsKernel<Team, Precision, kIsAligned>;
  using Rows = rows::RowKernels<T, sizeof(T) == 8 ? 16 : 32, OfTeam>;
  // As many registers as the threads of the largest block have.
  using Cluster = rows::ClusterTeam<T, sizeof(T) == 8 ? 1 : 4>;
  static constexpr rows::ClusterKernel<Params> kClusters[2] = {
      rows::cluster_kernel<OfTeam<Cluster, false>>(),
      rows::cluster_kernel<OfTeam<Cluster, true>>()};
  static constexpr Kernel kSegments[3] = {
      rows::make_kernel<SegmentKernel<T, Precision, Step::largest>>(),
      rows::make_kernel<SegmentKernel<T, Precision, Step::sum>>(),
      rows::make_kernel<SegmentKernel<T, Precision, Step::store>>()};
};

struct KernelLists {
  rows::KernelList<Params> aligned;
  rows::KernelList<Params> any;
  const rows::ClusterKernel<Params> (&clusters)[2];  // the index is whether all is aligned
  const Kernel (&segments)[3];                       // the index is a Step
};

template <class T>
constexpr KernelLists kernel_lists() {
  using K = Kernels<T, math::precision_of<T>>;
  return {K::Rows::kAligned, K::Rows::kAny, K::kClusters, K::kSegments};
}

// The index is a bridge_dtype.
constexpr KernelLists kKernels[] = {kernel_lists<float16>(), kernel_lists<bfloat16>(),
                                    kernel_lists<float>(), kernel_lists<double>()};

// Bytes that a term of a row's sum has (math::SoftmaxTerm).
size_t term_bytes(const bridge_softmax& call) {
  return call.dtype == BRIDGE_FLOAT32 ? sizeof(math::SoftmaxTerm<math::Single>) : real_bytes(call);
}

// For the registers of a block: a cluster takes the row, or segments of it go through memory.
bool is_too_long(const bridge_softmax& call) {
  return call.space.cols > kKernels[call.dtype].any.most_cols();
}

int64_t rows_at_once(const bridge_softmax& call) {
  return rows::rows_at_once(row_count(call.space), call.space.cols * element_bytes(call.dtype));
}

size_t workspace_bytes_of(const bridge_softmax& call) {
  if (!is_too_long(call)) return 0;
  const int64_t rows = rows_at_once(call);
  const int64_t segments = ceil_divide(call.space.cols, rows::kSegmentCols);
  return rows::node_bytes(rows, segments, real_bytes(call)) +
         rows::node_bytes(rows, segments, term_bytes(call));
}

Params make_params(const bridge_softmax& call) {
  bridge_softmax copy = call;
  const int64_t bytes = element_bytes(call.dtype);
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
  // Queries are numbered in order where a row sees the columns up to its own.
  if (params.mask != nullptr && params.layout.queries == 0)
    rows::join_readers(params.layout, kMask);
  params.scale_single = single_scale(call);
  params.scale_double = math::softmax_scale<math::Double>(call.scale);
  return params;
}

// Whether every vector of every row is whole and lies at a multiple of its size.
bool is_aligned(const bridge_softmax& call, const Params& params) {
  const int64_t vector = 16 / element_bytes(call.dtype);
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
  const KernelLists& lists = kKernels[call.dtype];
  const bool aligned = is_aligned(call, params);
  if (!is_too_long(call)) {
    return (aligned ? lists.aligned : lists.any).enqueue(params, stream);
  }
  const auto& cluster = lists.clusters[aligned ? 1 : 0];
  if (const int blocks = cluster.blocks_of(call.space.cols))
    return cluster.enqueue(blocks, params, stream);
  char* memory = static_cast<char*>(workspace);
  if (call.dtype == BRIDGE_FLOAT64)
    return enqueue_segments<math::Double>(call, params, memory, stream);
  if (call.dtype == BRIDGE_FLOAT32)
    return enqueue_segments<math::Single>(call, params, memory, stream);
  // Those of both 16-bit types have the nodes alike.
  return enqueue_segments<math::SingleForBfloat16>(call, params, memory, stream);
}

constexpr auto kEntry =
    rows::op_entry<bridge_softmax>("softmax", validate, workspace_bytes_of, enqueue);

}  // namespace

const char* load_kernels() {
  for (const KernelLists& lists : kKernels) {
    const char* error = cuda::load_all(lists.aligned, lists.any, lists.clusters, lists.segments);
    if (error != nullptr) return error;
  }
  if (const char* error = rows::load_levels<Largest>()) return error;
  if (const char* error = rows::load_levels<Sum>()) return error;
  return simt::load<rows::NodesKernel<Sum, math::SoftmaxTerm<math::Single>>>();
}

}  // namespace bridge::softmax

extern "C" BRIDGE_EXPORT size_t bridge_softmax_cuda_workspace(const bridge_softmax* call) {
  return bridge::cuda::workspace_bytes(bridge::softmax::kEntry, call);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_softmax_cuda(const bridge_softmax* call,
                                                           void* workspace, size_t workspace_bytes,
                                                           void* stream) {
  return bridge::cuda::run(bridge::softmax::kEntry, call, workspace, workspace_bytes, stream);
}
