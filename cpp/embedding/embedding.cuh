// The sums of the cotangents of equal ids on CUDA. Three kernels follow each other: one finds the
// positions of each id, one adds chunks of up to 128 positions, one adds the chunks of ids with
// more positions. A warp has some columns of one row or chunk, and no two warps write the same.
#ifndef BRIDGE_EMBEDDING_EMBEDDING_CUH_
#define BRIDGE_EMBEDDING_EMBEDDING_CUH_

#include <bridge/bridge.h>

#include "cuda/division.h"
#include "cuda/vector.h"
#include "drivers/columns/column_sum_tree.h"
#include "drivers/columns/column_sums.cuh"
#include "embedding/embedding.h"
#include "math/precision.h"

namespace bridge::embedding {

using columns::tree_sum;
using simt::divide;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / simt::kWarpThreads;
constexpr int64_t kWarpCols = 4 * simt::kWarpThreads;

// A window is kChunkRows positions of sorted ids. A chunk of an id with several chunks begins in
// one window; two chunks begin in the same only if the second is the first of its id. So the
// workspace has two chunks for a window: one that continues an id, and one that begins it.
struct SumsParams {
  int64_t batches, count, rows, cols, windows;
  int32_t index_dtype;
  const void* ids;    // [batches, count]
  const void* order;  // [batches, count]
  const void* terms;  // [batches, count, cols]
  void* result;       // [batches, rows, cols]
  int64_t* starts;    // [batches, rows + 1]: the first position of each id
  void* chunks;       // [batches, windows, 2, cols]
};

// Returns the first position of sorted ids whose id is at least `id`; `count` if there is none.
BRIDGE_DEVICE int64_t first_position(const void* ids, int32_t dtype, int64_t count, int64_t id) {
  int64_t begin = 0, end = count;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (index_at(ids, dtype, middle) < id)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

struct Positions {
  int64_t begin, end;
};

BRIDGE_DEVICE int64_t id_at(const SumsParams& params, int64_t batch, int64_t position) {
  return index_at(params.ids, params.index_dtype, batch * params.count + position);
}

BRIDGE_DEVICE Positions positions_of(const SumsParams& params, int64_t batch, int64_t id) {
  if (id < 0 || id >= params.rows) return {0, 0};
  const int64_t* const start = params.starts + batch * (params.rows + 1) + id;
  return {start[0], start[1]};
}

// Returns the positions of the id with several chunks that begins in a window, if there is one.
BRIDGE_DEVICE Positions beginning_in(const SumsParams& params, int64_t batch, int64_t window) {
  const int64_t first = window * kChunkRows, next = first + kChunkRows;
  if (next > params.count) return {0, 0};
  const Positions all = positions_of(params, batch, id_at(params, batch, next - 1));
  return all.begin >= first && all.end - all.begin > kChunkRows ? all : Positions{0, 0};
}

// Returns the chunk that begins in a window and is not the first of its id, if there is one.
BRIDGE_DEVICE Positions continuing_in(const SumsParams& params, int64_t batch, int64_t window) {
  const int64_t first = window * kChunkRows;
  const Positions all = positions_of(params, batch, id_at(params, batch, first));
  if (all.begin >= first) return {0, 0};
  const int64_t begin = first + (kChunkRows - (first - all.begin) % kChunkRows) % kChunkRows;
  return {begin, all.end};
}

// Returns the sum of at most kChunkRows terms in one column. An absent term is -0.0, the identity.
template <class T, class Real>
BRIDGE_DEVICE Real chunk_sum(const SumsParams& params, int64_t batch, const Positions& chunk,
                             int64_t column) {
  const int64_t before = batch * params.count;
  Real leaves[kLeaves];
#pragma unroll
  for (int leaf = 0; leaf < kLeaves; ++leaf) {
    leaves[leaf] = Real(-0.0);
    const int64_t first = chunk.begin + leaf * kLeafRows;
    if (first >= chunk.end) continue;
#pragma unroll 4
    for (int i = 0; i < kLeafRows; ++i) {
      if (first + i >= chunk.end) continue;
      const int64_t from = index_at(params.order, params.index_dtype, before + first + i);
      const T term = static_cast<const T*>(params.terms)[(before + from) * params.cols + column];
      leaves[leaf] = leaves[leaf] + simt::widen<Real>(term);
    }
  }
  return tree_sum(leaves);
}

// Calls run(batch, item, first column, end of the columns) for each part of a warp: some columns of
// each item of each batch.
template <class Run>
BRIDGE_DEVICE void for_parts(const SumsParams& params, int64_t items, const Run& run) {
  const int64_t tiles = (params.cols + kWarpCols - 1) / kWarpCols;
  const int thread = simt::thread_index();
  int64_t part = static_cast<int64_t>(simt::block_index().x) * kWarps + thread / simt::kWarpThreads;
  for (; part < params.batches * items * tiles;
       part += static_cast<int64_t>(simt::block_count().x) * kWarps) {
    const int64_t number = divide(part, tiles), batch = divide(number, items);
    const int64_t col = (part - number * tiles) * kWarpCols, end = col + kWarpCols;
    run(batch, number - batch * items, col + thread % simt::kWarpThreads,
        end < params.cols ? end : params.cols);
  }
}

struct StartsKernel {
  using Params = SumsParams;
  static constexpr int kThreads = embedding::kThreads;
  static constexpr int kMinBlocks = 2;

  static BRIDGE_DEVICE void run(const SumsParams& params) {
    const int64_t each = params.rows + 1, step = int64_t{simt::block_count().x} * kThreads;
    int64_t i = int64_t{simt::block_index().x} * kThreads + simt::thread_index();
    for (; i < params.batches * each; i += step) {
      const int64_t batch = divide(i, each);
      const auto* const ids = static_cast<const char*>(params.ids);
      const int64_t bytes = params.index_dtype == BRIDGE_INT32 ? 4 : 8;
      params.starts[i] = first_position(ids + batch * params.count * bytes, params.index_dtype,
                                        params.count, i - batch * each);
    }
  }
};

// Writes the rows of ids with at most one chunk, and the chunks of the others.
template <class T>
struct ChunksKernel {
  using Params = SumsParams;
  using Real = typename math::precision_of<T>::real;
  static constexpr int kThreads = embedding::kThreads;
  static constexpr int kMinBlocks = 2;

  static BRIDGE_DEVICE void run(const SumsParams& params) {
    for_parts(params, params.rows + 2 * params.windows,
              [&](int64_t batch, int64_t item, int64_t first, int64_t end) {
                if (item < params.rows)
                  write_row(params, batch, item, first, end);
                else
                  write_chunk(params, batch, item - params.rows, first, end);
              });
  }

  static BRIDGE_DEVICE void write_row(const SumsParams& params, int64_t batch, int64_t row,
                                      int64_t first, int64_t end) {
    const Positions all = positions_of(params, batch, row);
    if (all.end - all.begin > kChunkRows) return;
    T* const to = static_cast<T*>(params.result) + (batch * params.rows + row) * params.cols;
    for (int64_t col = first; col < end; col += simt::kWarpThreads) {
      const bool is_empty = all.begin == all.end;
      to[col] = math::round_to<T>(is_empty ? Real(0) : chunk_sum<T, Real>(params, batch, all, col));
    }
  }

  static BRIDGE_DEVICE void write_chunk(const SumsParams& params, int64_t batch, int64_t slot,
                                        int64_t first, int64_t end) {
    Positions chunk = slot % 2 == 0 ? continuing_in(params, batch, slot / 2)
                                    : beginning_in(params, batch, slot / 2);
    if (chunk.begin >= chunk.end) return;
    if (chunk.end > chunk.begin + kChunkRows) chunk.end = chunk.begin + kChunkRows;
    Real* const to =
        static_cast<Real*>(params.chunks) + (batch * 2 * params.windows + slot) * params.cols;
    for (int64_t col = first; col < end; col += simt::kWarpThreads)
      to[col] = chunk_sum<T, Real>(params, batch, chunk, col);
  }
};

// Adds the chunks of each id that has several, kLeaves at a time. Sums of as many chunks as a power
// of two wait, one for each 1 bit in the number of finished groups, as in a binary counter.
constexpr int kLevels = 24;
constexpr int64_t kMostPositions = (kChunkRows * kLeaves) << kLevels;

template <class T>
struct ChunkTreeKernel {
  using Params = SumsParams;
  using Real = typename math::precision_of<T>::real;
  static constexpr int kThreads = embedding::kThreads;
  static constexpr int kMinBlocks = 2;

  static BRIDGE_DEVICE void run(const SumsParams& params) {
    for_parts(
        params, params.windows, [&](int64_t batch, int64_t window, int64_t first, int64_t end) {
          const Positions all = beginning_in(params, batch, window);
          if (all.begin == all.end) return;
          const int64_t row = id_at(params, batch, all.begin);
          T* const to = static_cast<T*>(params.result) + (batch * params.rows + row) * params.cols;
          for (int64_t col = first; col < end; col += simt::kWarpThreads)
            to[col] = math::round_to<T>(sum(params, batch, all, col));
        });
  }

  static BRIDGE_DEVICE Real sum(const SumsParams& params, int64_t batch, const Positions& all,
                                int64_t col) {
    const Real* const chunks =
        static_cast<const Real*>(params.chunks) + batch * 2 * params.windows * params.cols + col;
    Real waiting[kLevels];
    int64_t groups = 0;
    for (int64_t begin = all.begin; begin < all.end; begin += kChunkRows * kLeaves) {
      Real values[kLeaves];
#pragma unroll
      for (int i = 0; i < kLeaves; ++i) {
        const int64_t chunk = begin + i * kChunkRows;
        const int64_t slot = chunk / kChunkRows * 2 + (chunk == all.begin ? 1 : 0);
        values[i] = chunk < all.end ? chunks[slot * params.cols] : Real(-0.0);
      }
      Real value = tree_sum(values);
      bool is_carried = true;
#pragma unroll
      for (int level = 0; level < kLevels; ++level) {
        const bool is_full = (groups >> level & 1) != 0;
        if (is_carried && is_full) value = waiting[level] + value;
        if (is_carried && !is_full) waiting[level] = value;
        is_carried = is_carried && is_full;
      }
      ++groups;
    }
    Real total = Real(-0.0);
#pragma unroll
    for (int level = 0; level < kLevels; ++level)
      if ((groups >> level & 1) != 0) total = waiting[level] + total;
    return total;
  }
};

}  // namespace bridge::embedding

#endif  // BRIDGE_EMBEDDING_EMBEDDING_CUH_
