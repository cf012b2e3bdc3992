// Which kernel takes the rows of a call, and how it is enqueued. Host code of the ops over rows.
#ifndef BRIDGE_WALKS_ROWS_ROW_LAUNCH_CUH_
#define BRIDGE_WALKS_ROWS_ROW_LAUNCH_CUH_

#include "walks/rows/row_nodes.cuh"

namespace bridge::rows {

template <class Params>
struct Kernel {
  const char* (*launch)(simt::Grid, size_t, void*, const Params&);
  const char* (*load)();
};

template <class K>
constexpr Kernel<typename K::Params> make_kernel() {
  return {simt::launch<K>, simt::load<K>};
}

// For rows of at most `cols` columns.
template <class Params>
struct RowKernel {
  int64_t cols;
  int rows;     // of a block
  bool blocks;  // a row has a block to itself, of as many warps as it has chunks
  Kernel<Params> kernel;
};

template <class K>
constexpr RowKernel<typename K::Params> row_kernel() {
  using Team = typename K::Team;
  return {Team::kCols, Team::kRows, Team::kRows == 1, make_kernel<K>()};
}

// Kernels for longer and longer rows.
template <class Params>
struct KernelList {
  const RowKernel<Params>* kernels;
  int count;

  template <int kCount>
  constexpr KernelList(const RowKernel<Params> (&list)[kCount]) : kernels(list), count(kCount) {}

  constexpr int64_t most_cols() const { return kernels[count - 1].cols; }

  const char* load() const {
    for (int i = 0; i < count; ++i) {
      if (const char* error = kernels[i].kernel.load()) return error;
    }
    return nullptr;
  }

  const char* enqueue(Params& params, void* stream) const {
    const RowKernel<Params>* chosen = kernels;
    while (chosen->cols < params.layout.cols) ++chosen;
    simt::Grid grid;
    grid.x = limited(ceil_divide(params.layout.rows, chosen->rows));
    if (chosen->blocks) {
      params.warps = static_cast<int>(ceil_divide(params.layout.cols, kChunkCols));
      grid.threads = params.warps * simt::kWarpThreads;
    }
    return chosen->kernel.launch(grid, 0, stream, params);
  }
};

// How many rows go into one launch, so that what they read first is still in the cache when they
// read it again.
inline int64_t rows_at_once(int64_t rows, int64_t row_bytes) {
  const int64_t most = row_bytes < simt::kCachedBytes ? simt::kCachedBytes / row_bytes : 1;
  return most < rows ? most : rows;
}

// Calls launch(grid) for one batch of rows after another, with params' first_row, rows and segments
// set to them; launch answers like simt::launch.
template <class Params, class Launch>
const char* for_each_batch(Params& params, int64_t at_once, Launch&& launch) {
  params.segments = ceil_divide(params.layout.cols, kSegmentCols);
  for (; params.first_row < params.layout.rows; params.first_row += at_once) {
    const int64_t left = params.layout.rows - params.first_row;
    params.rows = left < at_once ? left : at_once;
    simt::Grid grid;
    grid.x = limited(params.rows * params.segments);
    if (const char* error = launch(grid)) return error;
  }
  return nullptr;
}

}  // namespace bridge::rows

#endif  // BRIDGE_WALKS_ROWS_ROW_LAUNCH_CUH_
