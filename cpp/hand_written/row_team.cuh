// The team of threads of a row, and the vectors of each thread.
#ifndef BRIDGE_HAND_WRITTEN_ROW_TEAM_CUH_
#define BRIDGE_HAND_WRITTEN_ROW_TEAM_CUH_

#include "cuda/division.h"
#include "drivers/rows/row_tree.cuh"
#include "hand_written/row_layout.h"

namespace bridge::rows {

// kGroup threads of a warp for a row of at most kCols columns; the block takes several rows.
template <class T_, int kGroup, int kVectors_>
struct GroupTeam {
  using T = T_;
  static constexpr int kVector = simt::Pack<T>::kCount;
  static constexpr int kVectors = kVectors_;
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 2;
  static constexpr int kRows = kThreads / kGroup;  // per block
  static constexpr int kStep = kGroup * kVector;   // columns between the vectors of a thread
  static constexpr int kCols = kStep * kVectors;
  static_assert(kCols <= kChunkCols);

  static BRIDGE_DEVICE int64_t first_row() { return int64_t{simt::block_index().x} * kRows; }
  static BRIDGE_DEVICE int64_t row_step() { return int64_t{simt::block_count().x} * kRows; }
  static BRIDGE_DEVICE int row_in_block() { return simt::thread_index() / kGroup; }
  static BRIDGE_DEVICE int first_column() { return simt::thread_index() % kGroup * kVector; }
  // Returns true if any thread of the warp may have columns below `visible` in its vector q.
  static BRIDGE_DEVICE bool reaches(int q, int visible) {
    return q == 0 || q * kStep < visible;  // an empty row is rare
  }

  template <class Op, int kTag, class Real>
  static BRIDGE_DEVICE Real reduce(Real value, int /*warps*/) {
    return reduce_group<Op, kGroup>(value);
  }
  // See chunk_sum.
  template <class Real, int kTag, class Terms>
  static BRIDGE_DEVICE Real sum(int /*warps*/, Terms&& terms) {
    return chunk_sum<kGroup, kVectors, kVector, Real>(terms);
  }
  static BRIDGE_DEVICE void begin() {}
  static BRIDGE_DEVICE void join() {}
  static BRIDGE_DEVICE void sync() {}
};

// A block for a row, or for a part of a row, of at most kWarps chunks; each warp takes one chunk.
// The block may be launched with fewer warps.
template <class T_, int kWarps>
struct BlockTeam {
  using T = T_;
  static constexpr int kVector = simt::Pack<T>::kCount;
  static constexpr int kVectors = kChunkCols / (kWarp * kVector);
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kMinBlocks = 1;
  static constexpr int kRows = 1;
  static constexpr int kStep = kWarp * kVector;
  static constexpr int kCols = kWarps * kChunkCols;

  static BRIDGE_DEVICE int64_t first_row() { return simt::block_index().x; }
  static BRIDGE_DEVICE int64_t row_step() { return simt::block_count().x; }
  static BRIDGE_DEVICE int row_in_block() { return 0; }
  static BRIDGE_DEVICE int first_column() {
    return warp_column() + simt::thread_index() % kWarp * kVector;
  }
  static BRIDGE_DEVICE int warp_column() { return simt::thread_index() / kWarp * kChunkCols; }
  static BRIDGE_DEVICE bool reaches(int q, int visible) {
    return warp_column() + q * kStep < visible;
  }

  template <class Op, int kTag, class Real>
  static BRIDGE_DEVICE Real reduce(Real value, int warps) {
    return reduce_block<Op, kWarps, kTag>(reduce_group<Op, kWarp>(value), warps);
  }
  template <class Real, int kTag, class Terms>
  static BRIDGE_DEVICE Real sum(int warps, Terms&& terms) {
    return reduce_block<Sum, kWarps, kTag>(chunk_sum<kWarp, kVectors, kVector, Real>(terms), warps);
  }
  static BRIDGE_DEVICE void begin() {}
  static BRIDGE_DEVICE void join() {}
  // Between two rows: all values exchanged for the first have been read.
  static BRIDGE_DEVICE void sync() { simt::sync(); }
};

// A cluster of blocks for a row; the grid has one cluster in x. Chunks are dealt to the blocks in
// turn, so that blocks have only as many warps as they need.
template <class T_, int kMinBlocks_>
struct ClusterTeam {
  using T = T_;
  static constexpr int kVector = simt::Pack<T>::kCount;
  static constexpr int kVectors = kChunkCols / (kWarp * kVector);
  static constexpr int kMostWarps = 8;  // per block
  static constexpr int kMostBlocks = 16;
  static constexpr int kMostChunks = kMostWarps * kMostBlocks;
  static constexpr int kThreads = kMostWarps * kWarp;
  static constexpr int kMinBlocks = kMinBlocks_;
  static constexpr int kRows = 1;
  static constexpr int kStep = kWarp * kVector;
  static constexpr int kCols = kMostChunks * kChunkCols;
  static constexpr int kExchanges = 2;
  static constexpr size_t kSharedBytes = size_t{kExchanges} * kMostChunks * 8;

  static BRIDGE_DEVICE int64_t first_row() { return simt::block_index().y; }
  static BRIDGE_DEVICE int64_t row_step() { return simt::block_count().y; }
  static BRIDGE_DEVICE int row_in_block() { return 0; }
  static BRIDGE_DEVICE int first_column() {
    return warp_column() + simt::thread_index() % kWarp * kVector;
  }
  static BRIDGE_DEVICE int chunk() {
    return simt::thread_index() / kWarp * static_cast<int>(simt::block_count().x) +
           static_cast<int>(simt::block_index().x);
  }
  static BRIDGE_DEVICE int warp_column() { return chunk() * kChunkCols; }
  static BRIDGE_DEVICE bool reaches(int q, int visible) {
    return warp_column() + q * kStep < visible;
  }

  template <class Op, int kTag, class Real>
  static BRIDGE_DEVICE Real reduce(Real value, int chunks) {
    return reduce_cluster<Op, kTag>(reduce_group<Op, kWarp>(value), chunks);
  }
  template <class Real, int kTag, class Terms>
  static BRIDGE_DEVICE Real sum(int chunks, Terms&& terms) {
    return reduce_cluster<Sum, kTag>(chunk_sum<kWarp, kVectors, kVector, Real>(terms), chunks);
  }
  // `begin` comes before a row, `join` before its first exchange. Then every block has begun, and
  // has read the values exchanged for the previous row.
  static BRIDGE_DEVICE void begin() { simt::arrive_at_cluster(); }
  static BRIDGE_DEVICE void join() { simt::wait_for_cluster(); }
  static BRIDGE_DEVICE void sync() {}

 private:
  // Reduces one value per warp, the same in all its lanes; every block gets the result.
  template <class Op, int kTag, class Real>
  static BRIDGE_DEVICE Real reduce_cluster(Real value, int chunks) {
    static_assert(sizeof(Real) <= 8 && kTag < kExchanges);
    Real* const cells =
        reinterpret_cast<Real*>(simt::dynamic_shared<char>() + size_t{kTag} * kMostChunks * 8);
    const int lane = simt::thread_index() % kWarp;
    if (lane < static_cast<int>(simt::block_count().x))
      simt::store_in_cluster(cells + chunk(), lane, value);
    simt::sync_cluster();
    constexpr int kEach = kMostChunks / kWarp;
    Real node[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane * kEach + i;
      node[i] = at < chunks ? cells[at] : Op::template identity<Real>();
    }
#pragma unroll
    for (int width = 1; width < kEach; width *= 2) {
#pragma unroll
      for (int i = 0; i < kEach; i += 2 * width) node[i] = Op::of(node[i], node[i + width]);
    }
    return reduce_group<Op, kWarp>(node[0]);
  }
};

// Calls visit(row) in every thread of the team of each row. It is also called for some rows that do
// not exist, because all threads of a block take as many turns.
template <class Team, class Visit>
BRIDGE_DEVICE void for_each_row(int64_t rows, Visit&& visit) {
  for (int64_t first = Team::first_row();;) {
    Team::begin();
    visit(first + Team::row_in_block());
    first += Team::row_step();
    if (first >= rows) return;
    Team::sync();
  }
}

// Finds the offsets (bytes) of a row in all arrays; those of absent arrays are 0.
template <int kArrays>
BRIDGE_DEVICE void find_row(const RowLayout<kArrays>& layout, int64_t row,
                            int64_t (&offset)[kArrays]) {
#pragma unroll
  for (int a = 0; a < kArrays; ++a) offset[a] = 0;
#pragma unroll 1
  for (int d = layout.dims - 1; d > 0; --d) {
    const int64_t above = simt::divide(row, layout.size[d]);
    const int64_t index = row - above * layout.size[d];
    row = above;
#pragma unroll
    for (int a = 0; a < kArrays; ++a) offset[a] += index * layout.step[a][d];
  }
#pragma unroll
  for (int a = 0; a < kArrays; ++a) offset[a] += row * layout.step[a][0];
}

// Integers of 32 or 64 bits: the last column that each row sees. `bytes` of an integer; 0 if all
// columns are seen.
struct LastColumns {
  const char* data;
  int32_t bytes;
};

// Returns the number of columns that a row sees. `offset` is the row's in `last`.
BRIDGE_DEVICE int visible_columns(const LastColumns& last, int64_t offset, int cols) {
  const char* const at = last.data + offset;
  int column = *reinterpret_cast<const int32_t*>(at);  // the lower half of 64 bits
  if (last.bytes == 8) {
    const int upper = *reinterpret_cast<const int32_t*>(at + 4);
    if (upper != column >> 31) column = upper < 0 ? -1 : cols;
  }
  return column >= cols ? cols : column < 0 ? 0 : column + 1;
}

// A mask with a bit for each element of a vector from element `count` (any number) on.
template <int kVector>
BRIDGE_DEVICE uint32_t bits_from(int count) {
  constexpr uint32_t kAll = (1u << kVector) - 1;
  return count >= kVector ? 0 : count <= 0 ? kAll : kAll << count & kAll;
}

// Loads a vector of which `count` > 0 elements exist; missing ones are 0. kAligned: the vector is
// complete and lies at a multiple of 16 bytes.
template <bool kAligned, class T>
BRIDGE_DEVICE simt::Vector16 load_vector(const T* address, int count) {
  if constexpr (kAligned) return simt::load16(address);
  constexpr int kVector = simt::Pack<T>::kCount;
  if (count >= kVector && reinterpret_cast<uintptr_t>(address) % 16 == 0) {
    return simt::load16(address);
  }
  simt::Pack<T> pack{};
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    if (e < count) pack.element[e] = address[e];
  }
  simt::Vector16 words;
  memcpy(&words, &pack, sizeof words);
  return words;
}

// The words, with 0 in place of all elements but the first `count`.
template <class T>
BRIDGE_DEVICE simt::Vector16 first_elements(simt::Vector16 words, int count) {
  simt::Pack<T> pack;
  memcpy(&pack, &words, sizeof pack);
#pragma unroll
  for (int e = 0; e < simt::Pack<T>::kCount; ++e) {
    if (e >= count) pack.element[e] = T{};
  }
  memcpy(&words, &pack, sizeof words);
  return words;
}

template <bool kAligned, class T>
BRIDGE_DEVICE void store_vector(T* address, simt::Vector16 words, int count) {
  constexpr int kVector = simt::Pack<T>::kCount;
  if (kAligned || (count >= kVector && reinterpret_cast<uintptr_t>(address) % 16 == 0)) {
    simt::store16(address, words);
    return;
  }
  if constexpr (!kAligned) {
    simt::Pack<T> pack;
    memcpy(&pack, &words, sizeof pack);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if (e < count) address[e] = pack.element[e];
    }
  }
}

}  // namespace bridge::rows

#endif  // BRIDGE_HAND_WRITTEN_ROW_TEAM_CUH_
