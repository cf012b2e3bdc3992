// The kernels of bias_gelu, against the block and warp interface of cuda/simt.h. bias_gelu.cu
// chooses between them and lays the call under their threads.
#ifndef BRIDGE_OPS_BIAS_GELU_CUH_
#define BRIDGE_OPS_BIAS_GELU_CUH_

#include "bias_gelu_operands.cuh"

namespace bridge::bias_gelu {

// ((v0+v1)+(v2+v3))+((v4+v5)+(v6+v7)), and so on for any power of two.
template <int kCount, class Real>
BRIDGE_DEVICE Real tree_sum(Real (&values)[kCount]) {
#pragma unroll
  for (int width = 1; width < kCount; width *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * width) values[i] = values[i] + values[i + width];
  }
  return values[0];
}

// No column sums: threads side by side take the slots of a row, blocks interleave the rows.
template <class Operands>
struct ElementwiseKernel {
  using Params = bias_gelu::Params;
  static constexpr int kThreads = bias_gelu::kThreads;
  static constexpr int kMinBlocks = Operands::kMinBlocks;

  static BRIDGE_DEVICE void run(const Params& params) {
    const int thread = simt::thread_index();
    const simt::Index block = simt::block_index();
    const simt::Index blocks = simt::block_count();
    const int64_t slot = (static_cast<int64_t>(block.x) << params.column_bits) +
                         (thread & ((1 << params.column_bits) - 1));
    if (slot >= params.slots) return;
    const int64_t row = static_cast<int64_t>(block.y) * (kThreads >> params.column_bits) +
                        (thread >> params.column_bits);
    const int turns =
        static_cast<int>(divide(params.call.rows - 1 - row + params.row_step, params.row_step));
    const int64_t position = slot * Operands::kVector - params.shift;
    typename Operands::Real unused[Operands::kVector];
    for (int64_t batch = block.z; batch < params.call.batch; batch += blocks.z) {
      Operands::template walk<false>(params, batch, position, row, turns, unused);
    }
  }
};

// With column sums: a thread is one lane of a chunk; the block adds its lanes through shared
// memory.
template <class Operands>
struct ChunkKernel {
  using Params = bias_gelu::Params;
  using Real = typename Operands::Real;
  static constexpr int kThreads = bias_gelu::kThreads;
  static constexpr int kMinBlocks = Operands::kMinBlocks;
  static constexpr int kVector = Operands::kVector;
  // Writes are one element of each thread at a time, reads one thread's elements side by side: the
  // padding spreads both over the banks.
  static constexpr int kPitch = kThreads + 32 / kVector;

  static BRIDGE_DEVICE void run(const Params& params) {
    const int columns = 1 << params.column_bits;
    const int lanes = 1 << params.lane_bits;
    const int groups_per_block = kThreads >> (params.column_bits + params.lane_bits);
    const int thread = simt::thread_index();
    const int lane = (thread >> params.column_bits) & (lanes - 1);
    const int64_t first_slot = static_cast<int64_t>(simt::block_index().x) << params.column_bits;
    const int64_t slot = first_slot + (thread & (columns - 1));
    const int64_t groups = params.call.batch * params.chunks;
    const int64_t step = static_cast<int64_t>(simt::block_count().y) * groups_per_block;
    for (int64_t first = static_cast<int64_t>(simt::block_index().y) * groups_per_block;
         first < groups; first += step) {
      Real sum[kVector];
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum[e] = Real(-0.0);
      const int64_t group = first + (thread >> (params.column_bits + params.lane_bits));
      if (group < groups && slot < params.slots) {
        const int64_t batch = divide(group, params.chunks);
        const int64_t row = (group - batch * params.chunks) * kChunkRows + lane * kLaneRows;
        const int64_t rows = params.call.rows - row;
        const int turns = static_cast<int>(rows < kLaneRows ? rows : kLaneRows);
        Operands::template walk<true>(params, batch, slot * kVector - params.shift, row, turns,
                                      sum);
      }
      if (params.call.output.row.data != nullptr) {
        add_lanes(params, sum, first, first_slot * kVector - params.shift);
      }
    }
  }

  static BRIDGE_DEVICE void add_lanes(const Params& params, const Real (&sum)[kVector],
                                      int64_t first_group, int64_t first_column) {
    Real* lane_sums = simt::shared_array<Real, kVector * kPitch>();
    const int thread = simt::thread_index();
    simt::sync();  // the previous turn's sums have been read
#pragma unroll
    for (int e = 0; e < kVector; ++e) lane_sums[e * kPitch + thread] = sum[e];
    simt::sync();
    const int column_bits = params.column_bits;
    const int columns = kVector << column_bits;
    const int chunk_columns = (kThreads * kVector) >> params.lane_bits;
    for (int i = thread; i < chunk_columns; i += kThreads) {
      const int group = i / columns;
      const int element = i % kVector;
      const int first = (group << (column_bits + params.lane_bits)) + (i % columns) / kVector;
      Real values[kLanes];
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const bool present = lane < (1 << params.lane_bits);
        values[lane] = Real(-0.0);
        if (present) values[lane] = lane_sums[element * kPitch + first + (lane << column_bits)];
      }
      const Real total = tree_sum(values);
      const int64_t column = first_column + i % columns;
      const bool exists = first_group + group < params.call.batch * params.chunks;
      if (!exists || column < 0 || column >= params.call.cols) continue;
      if (params.partials != nullptr) {
        static_cast<Real*>(params.partials)[(first_group + group) * params.call.cols + column] =
            total;
      } else {
        const bridge_array& row = params.call.output.row;
        store_real(row, (first_group + group) * row.batch_stride + column, total);
      }
    }
  }
};

// One level of the tree over the chunks: each block replaces 64 neighbours by their sum.
constexpr int kTreeColumns = 32;
constexpr int kTreeValues = 8;
constexpr int64_t kTreeWidth = kTreeValues * (kThreads / kTreeColumns);

struct TreeParams {
  int64_t batch;
  int64_t count;  // per batch; 0 where there are no rows: the sum is then +0
  int64_t cols;
  const void* values;  // [batch, count, cols]
  void* sums;          // [batch, ceil(count / 64), cols], or NULL at the root: then row
  bridge_array row;
};

template <class Real>
struct TreeKernel {
  using Params = TreeParams;
  static constexpr int kThreads = bias_gelu::kThreads;
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
      simt::sync();  // the previous turn's sums have been read
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

}  // namespace bridge::bias_gelu

#endif  // BRIDGE_OPS_BIAS_GELU_CUH_
