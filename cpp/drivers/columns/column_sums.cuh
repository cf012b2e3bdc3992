// The tree of column sums above the chunks (column_sum_tree.h), one level at a time.
#ifndef BRIDGE_DRIVERS_COLUMNS_COLUMN_SUMS_CUH_
#define BRIDGE_DRIVERS_COLUMNS_COLUMN_SUMS_CUH_

#include <bridge/bridge.h>

#include "cuda/division.h"
#include "drivers/columns/elements.cuh"

namespace bridge::columns {

using simt::divide;

constexpr int kThreads = 256;

// Adds in the order ((v0+v1)+(v2+v3))+((v4+v5)+(v6+v7)), and so on for any power of two.
template <int kCount, class Real>
BRIDGE_DEVICE Real tree_sum(Real (&values)[kCount]) {
#pragma unroll
  for (int width = 1; width < kCount; width *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * width) values[i] = values[i] + values[i + width];
  }
  return values[0];
}

// One level of the tree over the chunks: each block replaces 64 neighbours by their sum.
constexpr int kTreeColumns = 32;
constexpr int kTreeValues = 8;
constexpr int64_t kTreeWidth = kTreeValues * (kThreads / kTreeColumns);

struct TreeParams {
  int64_t batch;
  int64_t count;  // per batch; 0 if there are no rows: the sum is then +0
  int64_t cols;
  const void* values;  // [batch, count, cols]
  void* sums;          // [batch, ceil(count / 64), cols]; NULL at the root, which goes to row
  Array row;
};

template <class Real>
struct TreeKernel {
  using Params = TreeParams;
  static constexpr int kThreads = columns::kThreads;
  static constexpr int kMinBlocks = 2;
  static constexpr int kGroups = kThreads / kTreeColumns;

  static BRIDGE_DEVICE void run(const TreeParams& params) {
    Real* shared = simt::shared_array<Real, kThreads>();
    const int thread = simt::thread_index();
    const int64_t column =
        static_cast<int64_t>(simt::block_index().x) * kTreeColumns + thread % kTreeColumns;
    const bool in_row = column < params.cols;
    const int64_t nodes = params.count > 0 ? (params.count + kTreeWidth - 1) / kTreeWidth : 1;
    for (int64_t node = simt::block_index().y; node < params.batch * nodes;
         node += simt::block_count().y) {
      const int64_t batch = divide(node, nodes);
      const int64_t first =
          (node - batch * nodes) * kTreeWidth + (thread / kTreeColumns) * kTreeValues;
      Real values[kTreeValues];
#pragma unroll
      for (int i = 0; i < kTreeValues; ++i) {
        values[i] = Real(-0.0);
        if (in_row && first + i < params.count) {
          values[i] = static_cast<const Real*>(
              params.values)[(batch * params.count + first + i) * params.cols + column];
        }
      }
      simt::sync();  // the sums of the previous turn have been read
      shared[thread] = tree_sum(values);
      simt::sync();
      if (thread >= kTreeColumns || !in_row) continue;
      Real groups[kGroups];
#pragma unroll
      for (int i = 0; i < kGroups; ++i) groups[i] = shared[i * kTreeColumns + thread];
      const Real total = params.count > 0 ? tree_sum(groups) : Real(0);
      if (params.sums != nullptr) {
        static_cast<Real*>(params.sums)[node * params.cols + column] = total;
      } else {
        store_real(params.row, batch * params.row.batch_stride + column, total);
      }
    }
  }
};

}  // namespace bridge::columns

#endif  // BRIDGE_DRIVERS_COLUMNS_COLUMN_SUMS_CUH_
