// The loops of a thread over the chunks, vectors and elements of a row, its position among the
// threads of the row, and their exchange through shared memory. A part of
// generated/cuda/row_driver.cuh.
#ifndef BRIDGE_GENERATED_CUDA_ROW_LOOPS_CUH_
#define BRIDGE_GENERATED_CUDA_ROW_LOOPS_CUH_

#include "drivers/rows/row_sum_tree.h"
#include "generated/cuda/call.h"
#include "generated/cuda/places.cuh"
#include "generated/cuda/streams.cuh"
#include "program/elementwise.h"

namespace bridge::interpreter {

// The part of a chunk that is in the row. any: any part; alike: each vector is in the row for all
// threads of the warp, or for none; full: all of it.
enum class Extent { any, alike, full };

// The part of a chunk that a thread has.
template <class W, Extent kExtent>
struct Part {
  const W& driver;

  BRIDGE_DEVICE int col(int q) const { return driver.col(q); }
  // Returns the distance of vector q from the first element of its row, in elements; a column has
  // kEach.
  template <int kEach>
  BRIDGE_DEVICE int64_t offset(int q, int64_t) const {
    return kEach * (static_cast<int64_t>(driver.col(0)) + q * W::kStep);
  }
  // reaches: the warp has a column of the row in its vectors q. is_in: the thread has element e of
  // vector q. is_written: it writes the vector; a thread without a row of its own may read the
  // elements of another row.
  BRIDGE_DEVICE bool reaches(int q) const { return kExtent == Extent::full || driver.reaches(q); }
  BRIDGE_DEVICE bool is_in(int q, int e) const {
    return kExtent == Extent::any ? driver.is_in(q, e) : reaches(q);
  }
  BRIDGE_DEVICE bool is_written(int q) const {
    return is_in(q, 0) && (kExtent == Extent::any || !W::kIsShort || driver.has_row());
  }
};

template <class P, int kGroup_, int kVectors_, bool kIsAligned_, bool kIsResident_, Extent kExtent>
class RowLoops : public RowPlaces<P> {
 public:
  using typename RowPlaces<P>::Real;
  using typename RowPlaces<P>::Params;
  static constexpr int kGroup = kGroup_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kVector = P::kVector;
  static constexpr bool kIsAligned = kIsAligned_;
  static constexpr bool kIsResident = kIsResident_;
  static constexpr bool kHasRows = false;  // the vectors of a thread are all of one row
  static constexpr bool kIsShort = kGroup < simt::kWarpThreads;
  static constexpr bool kStays = kIsShort || kIsResident;  // a thread has one chunk of a row
  // A thread that takes one chunk after the other keeps addresses in registers, if 16-bit numbers
  // leave some: a compiler would compute the addresses again for each chunk.
  static constexpr bool kFindsOnce = kIsAligned && !kStays && kVector == 8;
  static constexpr bool kAddsInMemory = P::kColumnSums > 0 && !kIsShort && !kIsResident;
  static constexpr bool kIsFull = kAddsInMemory && P::kIsTight;  // no registers for whole chunks
  static constexpr int kStaged = stages(simt::kArch) ? P::kStaged : 0;  // beside the column sums
  static constexpr bool kStages = kStaged > 0 && !kAddsInMemory;
  // Staging leaves registers for values that otherwise have none.
  static constexpr bool kKeepsMore = kStages && !kIsShort;
  // Column sums go through memory anyway, vector by vector.
  static constexpr bool kHolds = kIsAligned && !kStays && !kAddsInMemory && P::kHeld > 0;
  static constexpr bool kLoadsLate = kIsAligned && !kIsShort && kVectors > 4 && !P::kIsLarge;
  static constexpr int kHeldPiece = 16;           // adjacent bytes of a thread
  static constexpr int kStep = kGroup * kVector;  // columns between the vectors of a thread
  static constexpr int kParts = static_cast<int>(kSumQuarter) / kStep;  // vectors in a quarter
  static constexpr int kMost = static_cast<int>(kSumChunk) / kStep;     // and in a chunk
  static constexpr int kOfChunk = kVectors < kMost ? kVectors : kMost;
  static constexpr int kChunks = kVectors / kOfChunk;  // that a thread has at once
  static constexpr bool kIsWide = kChunks > 1;
  static constexpr int kUsed = kOfChunk < kParts ? kOfChunk : kParts;
  static constexpr int kQuarters = kOfChunk / kUsed;
  static_assert(kUsed * kQuarters * kChunks == kVectors && kQuarters <= 4);
  static_assert(!kIsWide || (kIsResident && (kChunks & (kChunks - 1)) == 0));

  // ---- The position of the thread. ----

  BRIDGE_DEVICE bool is_shared() const { return !kIsShort && space_.warps > 1; }
  BRIDGE_DEVICE bool is_cluster() const { return blocks_log2() > 0; }
  BRIDGE_DEVICE bool has_row() const { return has_row_; }
  BRIDGE_DEVICE int lane() const { return lane_; }
  BRIDGE_DEVICE int warp() const { return warp_; }
  BRIDGE_DEVICE int warps() const { return space_.warps; }
  BRIDGE_DEVICE int chunk() const { return chunk_; }
  BRIDGE_DEVICE int chunks() const {
    constexpr uint32_t kCols = static_cast<uint32_t>(kSumChunk);
    return static_cast<int>((static_cast<uint32_t>(space_.cols) + kCols - 1) / kCols);
  }
  // The nodes that warps write for a row: one for each chunk, or one for all chunks of the warp.
  BRIDGE_DEVICE int node() const { return kIsWide ? warp_ : chunk_; }
  BRIDGE_DEVICE int nodes() const { return kIsWide ? space_.warps : chunks(); }
  BRIDGE_DEVICE int64_t cols() const { return space_.cols; }
  BRIDGE_DEVICE int col(int q) const { return first_col(q) + lane_ * kVector; }
  BRIDGE_DEVICE bool reaches(int q) const { return first_col(q) < space_.cols; }
  // In aligned arrays a vector is in the row as a whole.
  BRIDGE_DEVICE bool is_in(int q, int e) const { return col(q) + (kIsAligned ? 0 : e) < own_cols_; }

  // Returns true in the one warp of a row for work done once for each row.
  BRIDGE_DEVICE bool is_first() const { return warp_ == 0; }

  // Waits until all blocks of the cluster have begun: the shared memory of a block must not be
  // written before.
  BRIDGE_DEVICE void join() {
    if (!is_cluster() || has_joined_) return;
    simt::wait_for_cluster();
    has_joined_ = true;
  }
  // Switches to the other of two areas of cells. A warp that writes an area for the second time has
  // synchronized with all others after they read it.
  BRIDGE_DEVICE void turn_cells() { area_ ^= 1; }
  // Synchronizes the warps that share a row, after the last chunk.
  BRIDGE_DEVICE void meet() const {
    if (is_cluster())
      simt::sync_cluster();
    else if (is_shared())
      simt::sync();
  }
  // Returns true if other warps need the result of this one. The last block of a cluster may have
  // warps without a chunk.
  BRIDGE_DEVICE bool leaves() const { return is_shared() && warp_ < space_.warps; }
  // Writes the result of the warp, which all its threads have, for all warps of the row. Needs
  // leaves().
  template <class T>
  BRIDGE_DEVICE void leave(int cell, int chunk, T found) const {
    T* const own = this->template cell<T>(cell, chunk);
    if (!is_cluster()) {
      if (lane_ == 0) *own = found;
    } else if (lane_ >> blocks_log2() == 0) {
      simt::store_in_cluster(own, lane_, found);
    }
  }
  template <class T>
  BRIDGE_DEVICE T left(int cell, int chunk) const {
    return *this->template cell<T>(cell, chunk);
  }

  template <class T>
  BRIDGE_DEVICE const T* cells(int cell) const {
    return this->template cell<T>(cell, 0);
  }

  // Returns true if the current chunk stays in shared memory; held() is its address there.
  BRIDGE_DEVICE bool is_held() const { return turn_ < space_.held_turns; }
  BRIDGE_DEVICE char* held() const { return held_; }

  // ---- Loops. ----

  // Calls body(part) and then end() for each of the thread's chunks; from the last chunk on if
  // kGoesBack. The type of `part` tells if the row has the whole chunk: then there are no bounds
  // checks.
  template <bool kGoesBack = false, class Body, class End>
  BRIDGE_DEVICE void each_chunk(const Body& body, const End& end) {
    own_cols_ = has_row_ ? space_.cols : 0;
    if constexpr (kStays) {
      chunk_ = warp_ * kChunks;
      run_chunk(body);
      end();
      return;
    }
    int last = space_.turns - 1;  // last round of the warp
    if (warp_ + last * space_.warps >= chunks()) --last;
    // The first condition takes fewer instructions, the second fewer registers.
    const auto is_left = [&] { return kHolds ? turn_ <= last : chunk_ < chunks(); };
    char* const first_held = held_;
    const int step = kHolds ? held_before(1, 0) : 0;
    if constexpr (kGoesBack) {
      held_ += last * step;
      chunk_ = warp_ + last * space_.warps;
      for (turn_ = last; turn_ >= 0; --turn_, chunk_ -= space_.warps, held_ -= step) {
        run_chunk(body);
        end();
      }
    } else {
      chunk_ = warp_;
      for (turn_ = 0; is_left(); ++turn_, chunk_ += space_.warps, held_ += step) {
        run_chunk(body);
        end();
      }
    }
    held_ = first_held;
  }
  // Calls body(q) for all vectors. The quarters of a part come one after the other.
  template <class Body>
  BRIDGE_DEVICE void each_vector(const Body& body) const {
    constexpr int kUnroll = P::kIsLarge || (kIsShort && !kIsAligned) ? 1 : kVectors;
#pragma unroll kUnroll
    for (int i = 0; i < kVectors; ++i) {
      const int in_chunk = i % kOfChunk;
      body(i - in_chunk + in_chunk / kQuarters + in_chunk % kQuarters * kUsed);
    }
  }
  template <class Body>
  BRIDGE_DEVICE void each_element(const Body& body) const {
    constexpr int kUnroll = P::kIsLarge ? 1 : kVector;
#pragma unroll kUnroll
    for (int e = 0; e < kVector; ++e) body(e);
  }
  // Calls body(e) for the element of vector q in `column`, if the thread has it; the other threads
  // skip these operations. chosen() returns the element by selection, because registers have no
  // index.
  template <class Body>
  BRIDGE_DEVICE void aside(int column, int q, const Body& body) const {
    const int e = column - col(q);
    if (static_cast<uint32_t>(e) >= kVector) return;
    simt::rarely();
    body(e);
  }
  template <class Element>
  BRIDGE_DEVICE auto chosen(int e, const Element& element) const {
    auto value = element(0);
#pragma unroll
    for (int i = 1; i < kVector; ++i) value = i == e ? element(i) : value;
    return value;
  }

  // Reads a vector of an operand that the row driver has staged.
  BRIDGE_DEVICE void read_staged(int number, int q, Pack<Real, kVector>& to) const {
    each_piece(P::kColumnSums + number, q, [&](int first, const Piece* kept) {
      Piece piece;
      piece.read(reinterpret_cast<const char*>(kept));
#pragma unroll
      for (int e = 0; e < kPiece; ++e) to.element[first + e] = piece.element[e];
    });
  }

 protected:
  using RowPlaces<P>::space_;

  static constexpr bool kKeepsSums = P::kColumnSums > 0 && !kAddsInMemory;
  static constexpr int kPiece = 16 / sizeof(Real) < kVector ? 16 / sizeof(Real) : kVector;
  static constexpr int kPieces = kVector / kPiece;  // of a vector of sums
  static constexpr int kKeptPieces =
      (P::kColumnSums + kStaged) * kVectors * kPieces;  // of a thread
  using Piece = Pack<Real, kPiece>;

  explicit BRIDGE_DEVICE RowLoops(const Params& params)
      : RowPlaces<P>(params), shared_(simt::dynamic_shared<int64_t>()) {
    if constexpr (kKeepsSums)
      shared_ += kKeptPieces * sizeof(Piece) / sizeof(int64_t) * space_.threads;
    if constexpr (kHolds) shared_ += held_before(space_.held_turns, 0) / sizeof(int64_t);
    if constexpr (kFindsOnce && kHolds) shared_ = simt::found_shared(shared_);
  }

  template <class Body>
  BRIDGE_DEVICE void run_chunk(const Body& body) const {
    if constexpr (kExtent == Extent::any && kIsAligned && !kIsShort && !P::kIsLarge) {
      if (first_col(kVectors) <= space_.cols) return body(Part<RowLoops, Extent::full>{*this});
    }
    body(Part<RowLoops, kExtent>{*this});
  }
  // Calls body(first element, address) for the pieces of a vector in shared memory. Pieces of the
  // threads of a warp are adjacent, and so are all pieces of a warp: their addresses differ from
  // the thread's by constants.
  template <class Body>
  BRIDGE_DEVICE void each_piece(int sum, int q, const Body& body) const {
    const int thread = simt::thread_index(), warp = thread / simt::kWarpThreads;
    Piece* const own = simt::dynamic_shared<Piece>() + thread % simt::kWarpThreads +
                       warp * (kKeptPieces * simt::kWarpThreads);
    Piece* const first = own + (sum * kVectors + q) * (kPieces * simt::kWarpThreads);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) body(i * kPiece, first + i * simt::kWarpThreads);
  }
  BRIDGE_DEVICE int blocks_log2() const { return kIsShort ? 0 : space_.blocks_log2; }
  template <class T>
  BRIDGE_DEVICE T* cell(int cell, int chunk) const {
    return reinterpret_cast<T*>(shared_ + (area_ * P::kCells + cell) * cell_step(nodes())) + chunk;
  }
  BRIDGE_DEVICE int held_before(int turn, int warp) const {
    const auto warps = static_cast<uint32_t>(space_.threads) / simt::kWarpThreads;
    return (turn * static_cast<int>(warps) + warp) * P::kHeld;
  }
  BRIDGE_DEVICE int first_col(int q) const {
    return chunk_ * static_cast<int>(kSumChunk) + q * kStep;
  }

  int64_t* shared_;
  char* held_ = nullptr;  // shared memory of the warp's current chunk
  int lane_ = 0, warp_ = 0;
  int chunk_ = 0;
  int turn_ = 0;      // round of the current chunk
  int own_cols_ = 0;  // 0 if the thread has no row
  int area_ = 1;      // of cells
  bool has_row_ = true;
  bool has_joined_ = false;
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_ROW_LOOPS_CUH_
