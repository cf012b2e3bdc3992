// The sums of chunks of rows, the lower levels of the column-sum tree (column_sum_tree.h), from
// rows in memory.
#ifndef BRIDGE_INTERPRETER_CHUNK_SUMS_CUH_
#define BRIDGE_INTERPRETER_CHUNK_SUMS_CUH_

#include "drivers/columns/column_sum_tree.h"
#include "drivers/columns/column_sums.cuh"

namespace bridge::interpreter {

struct ChunkSumsParams {
  int64_t batch;
  int64_t rows;
  int64_t cols;
  const void* values;  // [batch, rows, cols]
  void* sums;          // [batch, chunks, cols]; NULL: one chunk, with its sums in `row`
  columns::Array row;
};

// A thread adds a leaf of one column. The eight threads of a block that share a column add a chunk.
template <class Real>
struct ChunkSumsKernel {
  using Params = ChunkSumsParams;
  static constexpr int kThreads = columns::kThreads;
  static constexpr int kMinBlocks = 2;
  static constexpr int kColumns = kThreads / static_cast<int>(kLeaves);

  static BRIDGE_DEVICE void run(const ChunkSumsParams& params) {
    Real* shared = simt::shared_array<Real, kThreads>();
    const int thread = simt::thread_index();
    const int64_t column =
        static_cast<int64_t>(simt::block_index().x) * kColumns + thread % kColumns;
    const bool in_row = column < params.cols;
    const int64_t chunks = (params.rows + kChunkRows - 1) / kChunkRows;
    for (int64_t node = simt::block_index().y; node < params.batch * chunks;
         node += simt::block_count().y) {
      const int64_t batch = simt::divide(node, chunks);
      const int64_t first = (node - batch * chunks) * kChunkRows + thread / kColumns * kLeafRows;
      const int64_t end = first + kLeafRows < params.rows ? first + kLeafRows : params.rows;
      Real sum = Real(-0.0);
      for (int64_t row = first; in_row && row < end; ++row) {
        sum = sum + static_cast<const Real*>(
                        params.values)[(batch * params.rows + row) * params.cols + column];
      }
      simt::sync();  // the previous turn's sums have been read
      shared[thread] = sum;
      simt::sync();
      if (thread >= kColumns || !in_row) continue;
      Real leaves[kLeaves];
#pragma unroll
      for (int i = 0; i < kLeaves; ++i) leaves[i] = shared[i * kColumns + thread];
      const Real total = columns::tree_sum(leaves);
      if (params.sums != nullptr) {
        static_cast<Real*>(params.sums)[node * params.cols + column] = total;
      } else {
        columns::store_real(params.row, batch * params.row.batch_stride + column, total);
      }
    }
  }
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_CHUNK_SUMS_CUH_
