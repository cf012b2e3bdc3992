// Which kernel takes the rows of a call, and how it is enqueued. Host code of the ops over rows.
#ifndef BRIDGE_WALKS_ROWS_ROW_LAUNCH_CUH_
#define BRIDGE_WALKS_ROWS_ROW_LAUNCH_CUH_

#include <atomic>

#include "cuda/op_entry.h"
#include "cuda/vector.h"
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

// A kernel that takes rows of at most `cols` columns.
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

// A kernel whose rows have a cluster of blocks each.
template <class Params>
struct ClusterKernel {
  Kernel<Params> kernel;
  int most_chunks;       // of a row
  int most_warps;        // of a block
  size_t shared_bytes;   // of a block
  int (*most_blocks)();  // of a cluster on the current device

  const char* load() const {
    const char* error = kernel.load();
    if (error == nullptr) most_blocks();
    return error;
  }

  // How many blocks a row has; 0 where no cluster is large enough for it.
  int blocks_of(int64_t cols) const {
    const int64_t chunks = ceil_divide(cols, kChunkCols);
    if (chunks > most_chunks) return 0;
    int blocks = 1;
    while (int64_t{blocks} * most_warps < chunks) blocks *= 2;
    return blocks <= most_blocks() ? blocks : 0;
  }

  const char* enqueue(int blocks, Params& params, void* stream) const {
    const int64_t chunks = ceil_divide(params.layout.cols, kChunkCols);
    params.warps = static_cast<int>(chunks);
    simt::Grid grid;
    grid.x = grid.cluster = blocks;
    grid.y = params.layout.rows < simt::kMaxGridYZ ? params.layout.rows : simt::kMaxGridYZ;
    grid.threads = static_cast<int>(ceil_divide(chunks, blocks)) * simt::kWarpThreads;
    return kernel.launch(grid, shared_bytes, stream, params);
  }
};

// Asked of each device once: it takes a call of the driver for each size.
template <class K>
int most_blocks() {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];
  const int device = simt::current_device();
  const bool is_kept = device >= 0 && device < kDevices;
  int most = is_kept ? known[device].load(std::memory_order_relaxed) : 0;
  if (most > 0) return most;
  most = simt::most_in_cluster<K>(K::Team::kSharedBytes, K::Team::kMostBlocks);
  if (is_kept) known[device].store(most, std::memory_order_relaxed);
  return most;
}

template <class K>
constexpr ClusterKernel<typename K::Params> cluster_kernel() {
  using Team = typename K::Team;
  return {make_kernel<K>(), Team::kMostChunks, Team::kMostWarps, Team::kSharedBytes,
          most_blocks<K>};
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

// The kernels K<team, all vectors of a row are aligned> for rows of elements T that fit into a
// block. How many threads have a row, and how many vectors a thread: about as many of both as the
// row fills, but enough vectors to share the cost of a row among. The last of a list goes as far as
// the registers of a block do: kBlockWarps warps.
template <class T, int kBlockWarps, template <class Team, bool kIsAligned> class K>
struct RowKernels {
  static constexpr int kVector = simt::Pack<T>::kCount;
  static constexpr int kWide = kVector == 2 ? 32 : 8;    // threads for a row of 256 columns
  static constexpr int kWider = kVector == 2 ? 32 : 16;  // and of 512
  template <bool kIsAligned, int kGroup, int kVectors>
  using Group = K<GroupTeam<T, kGroup, kVectors>, kIsAligned>;
  template <bool kIsAligned>
  using Block = K<BlockTeam<T, kBlockWarps>, kIsAligned>;
  using Params = typename Block<true>::Params;

  static constexpr RowKernel<Params> kAligned[6] = {
      row_kernel<Group<true, 32 / kVector, 1>>(),
      row_kernel<Group<true, 32 / kVector, 4>>(),
      row_kernel<Group<true, kWide, 256 / kVector / kWide>>(),
      row_kernel<Group<true, kWider, 512 / kVector / kWider>>(),
      row_kernel<Group<true, 32, 32 / kVector>>(),
      row_kernel<Block<true>>()};
  static constexpr RowKernel<Params> kAny[4] = {
      row_kernel<Group<false, 32 / kVector, 1>>(),
      row_kernel<Group<false, kWide, 256 / kVector / kWide>>(),
      row_kernel<Group<false, 32, 32 / kVector>>(), row_kernel<Block<false>>()};
};

// Bytes of a number in a call's arithmetic.
template <class Call>
size_t real_bytes(const Call& call) {
  return call.dtype == BRIDGE_FLOAT64 ? sizeof(double) : sizeof(float);
}

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

// The C functions of an op, but for what is given.
template <class Call>
constexpr cuda::OpEntry<Call> op_entry(const char* name,
                                       decltype(cuda::OpEntry<Call>::validate) validate,
                                       decltype(cuda::OpEntry<Call>::workspace_bytes) workspace,
                                       decltype(cuda::OpEntry<Call>::enqueue) enqueue) {
  return {name,
          validate,
          [](const Call& call) { return row_count(call.space) == 0 || call.space.cols == 0; },
          workspace,
          [](const Call& call) -> const void* { return call.output.data; },
          enqueue};
}

}  // namespace bridge::rows

#endif  // BRIDGE_WALKS_ROWS_ROW_LAUNCH_CUH_
