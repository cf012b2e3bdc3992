// Rows that are too long for a block: each segment of a row produces a node, and the nodes of a row
// are the leaves of the rest of its tree.
#ifndef BRIDGE_DRIVERS_ROWS_ROW_NODES_CUH_
#define BRIDGE_DRIVERS_ROWS_ROW_NODES_CUH_

#include "drivers/rows/row_nodes.h"
#include "drivers/rows/row_team.cuh"

namespace bridge::rows {

template <class T>
using SegmentTeam = BlockTeam<T, kSegmentChunks>;

// Reduces the nodes of one row, at most kNodeWidth, to their root, in a block of kNodeThreads
// threads.
template <class Op, class Real, int kTag>
BRIDGE_DEVICE Real reduce_nodes(const Real* nodes, int64_t count) {
  constexpr int kEach = kNodeWidth / kNodeThreads;
  const int first = simt::thread_index() * kEach;
  Real value[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    value[i] = first + i < count ? nodes[first + i] : Op::template identity<Real>();
  }
#pragma unroll
  for (int width = 1; width < kEach; width *= 2) {
#pragma unroll
    for (int i = 0; i < kEach; i += 2 * width) value[i] = Op::of(value[i], value[i + width]);
  }
  constexpr int kWarps = kNodeThreads / kWarp;
  return reduce_block<Op, kWarps, kTag>(reduce_group<Op, kWarp>(value[0]), kWarps);
}

template <class Op, class Real, int kTag>
BRIDGE_DEVICE Real reduce_nodes(const Nodes& nodes, int64_t row) {
  return reduce_nodes<Op, Real, kTag>(
      static_cast<const Real*>(nodes.roots) + row * nodes.root_count, nodes.root_count);
}

// Stores a node. Thread 0 calls it, or all threads with the same value.
template <class Real>
BRIDGE_DEVICE void put_node(const Nodes& nodes, int64_t node, Real value) {
  if (simt::thread_index() == 0) static_cast<Real*>(nodes.leaves)[node] = value;
}

// One level of the tree: kNodeWidth nodes of a row become one.
template <class Op, class Real>
struct NodesKernel {
  using Params = NodesParams;
  static constexpr int kThreads = kNodeThreads;
  static constexpr int kMinBlocks = 2;

  static BRIDGE_DEVICE void run(const NodesParams& params) {
    for (int64_t to = simt::block_index().x; to < params.rows * params.to_count;
         to += simt::block_count().x) {
      const int64_t row = simt::divide(to, params.to_count);
      const int64_t first = (to - row * params.to_count) * kNodeWidth;
      const Real* nodes = static_cast<const Real*>(params.from) + row * params.from_count + first;
      const Real value = reduce_nodes<Op, Real, 0>(nodes, params.from_count - first);
      if (simt::thread_index() == 0) static_cast<Real*>(params.to)[to] = value;
      simt::sync();  // the exchanged values have been read
    }
  }
};

inline int64_t limited(int64_t blocks) {
  return blocks < simt::kMaxGridX ? blocks : simt::kMaxGridX;
}

// Enqueues the levels between a launch's leaves and roots, if there are any.
template <class Op, class Real>
const char* enqueue_levels(const Nodes& nodes, int64_t rows, int64_t segments, void* stream) {
  NodesParams params{};
  params.rows = rows;
  params.from = nodes.leaves;
  params.to = nodes.leaves;
  for (params.from_count = segments; params.from_count > kNodeWidth;
       params.from_count = params.to_count) {
    params.from = params.to;
    params.to = static_cast<Real*>(params.to) + rows * params.from_count;
    params.to_count = ceil_divide(params.from_count, kNodeWidth);
    simt::Grid grid;
    grid.x = limited(rows * params.to_count);
    if (const char* error = simt::launch<NodesKernel<Op, Real>>(grid, 0, stream, params)) {
      return error;
    }
  }
  return nullptr;
}

template <class Op>
const char* load_levels() {
  if (const char* error = simt::load<NodesKernel<Op, float>>()) return error;
  return simt::load<NodesKernel<Op, double>>();
}

}  // namespace bridge::rows

#endif  // BRIDGE_DRIVERS_ROWS_ROW_NODES_CUH_
