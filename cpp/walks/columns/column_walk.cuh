// How the threads of a block share arrays of [batch, rows, cols] when each keeps to its columns and
// walks down its rows, so that a bias stays in registers and column sums need no atomics. An op
// brings its Params, derived from Walk with its call in them, and its Operands: what a thread does
// in each row.
#ifndef BRIDGE_WALKS_COLUMNS_COLUMN_WALK_CUH_
#define BRIDGE_WALKS_COLUMNS_COLUMN_WALK_CUH_

#include <bridge/bridge.h>

#include <type_traits>

#include "cuda/vector.h"
#include "math/convert.h"
#include "walks/columns/column_sum_tree.h"
#include "walks/columns/column_sums.cuh"

namespace bridge::columns {

// A vector is kVector adjacent columns of a row, a slot the place of one. Elements have positions
// in the span that their row belongs to, and exist where 0 <= position < span. Vectors lie at
// 16-byte boundaries: the first starts `shift` elements before the row. Those at positions p with
// 0 <= p < whole have all their elements. Rows, cols and strides of the call are as the kernel
// walks them, and may differ from the caller's (see flatten()).
struct Walk {
  int64_t slots;
  int64_t shift;
  int64_t span;
  int64_t whole;

  int64_t row_positions;  // how far positions advance with a row: 0 where each row is a span
  int64_t row_step;       // rows that one step of a walk advances

  // A block is 2^column_bits slots wide; the rest of its threads are lanes (of 16 rows in a chunk)
  // and then chunks, or rows in the elementwise kernels.
  int column_bits;
  int lane_bits;
  int64_t chunks;  // of a batch
  void* partials;  // [batch, chunks, cols] in the arithmetic type; NULL where chunks is 1
};

template <class T>
BRIDGE_DEVICE T* first(const bridge_array& array, int64_t batch, int64_t row, int64_t position) {
  if (array.data == nullptr) return nullptr;
  return static_cast<T*>(array.data) + batch * array.batch_stride + row * array.row_stride +
         position;
}

template <class U>
BRIDGE_DEVICE void advance(U*& pointer, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<U>, const char, char>;
  pointer = reinterpret_cast<U*>(reinterpret_cast<Byte*>(pointer) + bytes);
}

// The elements of a row vector from `position` on. It repeats every call.cols positions; the
// positions before 0 and behind the end of the span get some element of it. Where there is none its
// place is taken by -0.0, the exact identity of IEEE addition: one code path serves both.
template <class Params, class Real, int kVector>
BRIDGE_DEVICE void load_row(const Params& params, const bridge_array& row, int64_t batch,
                            int64_t position, Real (&values)[kVector]) {
  if (row.data == nullptr) {
#pragma unroll
    for (int e = 0; e < kVector; ++e) values[e] = Real(-0.0);
    return;
  }
  const int64_t cols = params.call.cols;
  int64_t column = position;
  if (column < 0) column += divide(params.shift + cols - 1, cols) * cols;
  column -= divide(column, cols) * cols;
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    values[e] = load_real<Real>(row, batch * row.batch_stride + column);
    if (++column == cols) column = 0;
  }
}

BRIDGE_DEVICE bool is_whole(const Walk& walk, int64_t position) {
  return static_cast<uint64_t>(position) < static_cast<uint64_t>(walk.whole);
}

// `turns` rows from `row` on, at `position` in the first of its span's rows.
template <bool kSums, class Params, class Operands, class Real, int kVector>
BRIDGE_DEVICE void walk(const Params& params, Operands& operands, int64_t position, int64_t row,
                        int turns, Real (&sum)[kVector]) {
  position += row * params.row_positions;
  const int64_t position_step = params.row_step * params.row_positions;
  // Rows of one span: the first vector may begin before it and the last end behind it. A span for
  // each row: all of the rows are alike.
  while (turns > 0) {
    const int64_t last = position + (turns - 1) * position_step;
    int whole_turns = turns - (is_whole(params, last) ? 0 : 1);
    if (!is_whole(params, position)) whole_turns = 0;
    if (whole_turns > 0) {
      operands.template walk_whole<kSums>(params, whole_turns, sum);
      position += whole_turns * position_step;
      turns -= whole_turns;
    } else {
      operands.template visit_edge<kSums>(params, position, sum);
      position += position_step;
      --turns;
    }
  }
}

// No column sums: threads side by side take the slots of a row, blocks interleave the rows.
template <class Operands>
struct ElementwiseKernel {
  using Params = typename Operands::Params;
  static constexpr int kThreads = columns::kThreads;
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
  using Params = typename Operands::Params;
  using Real = typename Operands::Real;
  static constexpr int kThreads = columns::kThreads;
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

}  // namespace bridge::columns

#endif  // BRIDGE_WALKS_COLUMNS_COLUMN_WALK_CUH_
