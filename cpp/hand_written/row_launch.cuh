// Chooses the kernel for the rows of a call and enqueues it. Host code of the ops over rows.
#ifndef BRIDGE_HAND_WRITTEN_ROW_LAUNCH_CUH_
#define BRIDGE_HAND_WRITTEN_ROW_LAUNCH_CUH_

#include <atomic>

#include "cuda/simt.h"
#include "cuda/vector.h"
#include "hand_written/row_layout.h"
#include "hand_written/row_team.cuh"

namespace bridge::rows {

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The blocks of a grid's x dimension; kernels take further rows in turns.
inline int64_t limited(int64_t blocks) {
  return blocks < simt::kMaxGridX ? blocks : simt::kMaxGridX;
}

template <class Params>
struct Kernel {
  const char* (*launch)(simt::Grid, size_t, void*, const Params&);
  const char* (*load)();
};

template <class K>
constexpr Kernel<typename K::Params> make_kernel() {
  return {simt::launch<K>, simt::load<K>};
}

// A kernel for rows of at most `cols` columns.
template <class Params>
struct RowKernel {
  int64_t cols;
  int rows;     // per block
  bool blocks;  // a row has a block to itself, with one warp per chunk
  Kernel<Params> kernel;
};

template <class K>
constexpr RowKernel<typename K::Params> row_kernel() {
  using Team = typename K::Team;
  return {Team::kCols, Team::kRows, Team::kRows == 1, make_kernel<K>()};
}

// A kernel that uses a cluster of blocks for each row.
template <class Params>
struct ClusterKernel {
  Kernel<Params> kernel;
  int most_chunks;       // per row
  int most_warps;        // per block
  size_t shared_bytes;   // per block
  int (*most_blocks)();  // per cluster, on the current device

  const char* load() const {
    const char* error = kernel.load();
    if (error == nullptr) most_blocks();
    return error;
  }

  // Returns the number of blocks for a row; 0 if no cluster is large enough.
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

// Returns the largest cluster in blocks. It is stored for each device, because it takes a driver
// call for every size.
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

// Kernels for rows of increasing length.
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

// The kernels K<team, true if all vectors of a row are aligned> for rows of elements T that fit in
// a block. Both the number of threads of a row and the number of vectors of a thread follow from
// the length of the row, but a thread has enough vectors to share the cost of a row among them. The
// last kernel of a list goes as far as the registers of a block do: kBlockWarps warps.
template <class T, int kBlockWarps, template <class Team, bool kIsAligned> class K>
struct RowKernels {
  static constexpr int kVector = simt::Pack<T>::kCount;
  static constexpr int kWide = kVector == 2 ? 32 : 8;    // threads for a row of 256 columns
  static constexpr int kWider = kVector == 2 ? 32 : 16;  // threads for a row of 512 columns
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

// Loads kernels, arrays of kernels or lists of kernels onto the current device; returns NULL or the
// error.
template <class Kernels>
const char* load_each(const Kernels& kernels) {
  return kernels.load();
}

template <class Kernels, int kCount>
const char* load_each(const Kernels (&kernels)[kCount]) {
  const char* error = nullptr;
  for (int i = 0; i < kCount && error == nullptr; ++i) error = load_each(kernels[i]);
  return error;
}

template <class... Kernels>
const char* load_all(const Kernels&... kernels) {
  const char* error = nullptr;
  ((error = error == nullptr ? load_each(kernels) : error), ...);
  return error;
}

// All kernels of an op for elements T.
template <class Params>
struct KernelLists {
  KernelList<Params> aligned, any;
  ClusterKernel<Params> aligned_cluster, any_cluster;  // for rows that no block holds

  bool take(int64_t cols) const {
    return cols <= any.most_cols() || any_cluster.blocks_of(cols) > 0;
  }

  const char* enqueue(bool is_aligned, Params& params, void* stream) const {
    if (params.layout.cols <= any.most_cols())
      return (is_aligned ? aligned : any).enqueue(params, stream);
    const ClusterKernel<Params>& cluster = is_aligned ? aligned_cluster : any_cluster;
    return cluster.enqueue(cluster.blocks_of(params.layout.cols), params, stream);
  }

  const char* load() const { return load_all(aligned, any, aligned_cluster, any_cluster); }
};

// Returns the kernels of RowKernels and those for clusters. The threads of a cluster have the
// registers for kClusterBlocks blocks at once.
template <class T, int kBlockWarps, int kClusterBlocks,
          template <class Team, bool kIsAligned> class K>
constexpr auto kernel_lists() {
  using Rows = RowKernels<T, kBlockWarps, K>;
  using Cluster = ClusterTeam<T, kClusterBlocks>;
  return KernelLists<typename Rows::Params>{Rows::kAligned, Rows::kAny,
                                            cluster_kernel<K<Cluster, true>>(),
                                            cluster_kernel<K<Cluster, false>>()};
}

}  // namespace bridge::rows

#endif  // BRIDGE_HAND_WRITTEN_ROW_LAUNCH_CUH_
