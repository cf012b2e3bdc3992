// The column driver of a program without reductions along the row, but with column sums or with
// operands shared by all rows. A thread keeps its columns and goes down 16 rows, a leaf of the tree
// of column_sum_tree.h; the warps of a block have the leaves of a chunk. Include it only in
// generated files.
//
// Here the vectors q of a thread are consecutive rows. A section runs on kVectors rows at once,
// which keeps many loads in flight.
#ifndef BRIDGE_GENERATED_CUDA_COLUMN_DRIVER_CUH_
#define BRIDGE_GENERATED_CUDA_COLUMN_DRIVER_CUH_

#include "drivers/columns/column_sum_tree.h"
#include "drivers/columns/column_sums.cuh"
#include "generated/cuda/rows.cuh"

namespace bridge::interpreter {

// Up to kVectors rows of a thread's columns; kIsFull: all of them exist.
template <class W, bool kIsFull>
struct RowsPart {
  const W& driver;

  BRIDGE_DEVICE int col(int) const { return driver.col(0); }
  template <int>
  BRIDGE_DEVICE int64_t offset(int q, int64_t row_stride) const {
    return q * row_stride;
  }
  BRIDGE_DEVICE bool reaches(int q) const { return kIsFull || q < driver.rows(); }
  BRIDGE_DEVICE bool is_in(int q, int) const { return reaches(q); }
  BRIDGE_DEVICE bool is_written(int q) const { return reaches(q); }
};

template <class P>
class ColumnWalk : public RowPlaces<P> {
 public:
  using typename RowPlaces<P>::Real;
  using typename RowPlaces<P>::Params;
  static constexpr int kVector = P::kVector;
  static constexpr int kVectors = kRowsAtOnce;
  static constexpr bool kIsAligned = true;
  static constexpr bool kIsResident = false;
  static constexpr bool kIsWide = false;
  static constexpr bool kHolds = false;
  static constexpr bool kStays = true;
  static constexpr bool kFindsOnce = false;
  static constexpr bool kIsFull = false;
  static constexpr bool kHasRows = true;
  static constexpr bool kLoadsLate = false;
  static constexpr int kSlots = simt::kWarpThreads;  // adjacent vectors of a block
  static_assert(kGeneratedThreads / kSlots == kLeaves && kLeafRows % kVectors == 0);

  explicit BRIDGE_DEVICE ColumnWalk(const Params& params) : RowPlaces<P>(params) {}

  BRIDGE_DEVICE void run() {
    const int slot = static_cast<int>(simt::block_index().x) * kSlots + slot_in_block();
    col_ = slot * kVector;
    const bool has_columns = col_ < space_.cols;
    const auto chunks =
        static_cast<int64_t>((static_cast<uint64_t>(space_.rows) + kChunkRows - 1) / kChunkRows);
    for (int64_t chunk = simt::block_index().y; chunk < chunks; chunk += simt::block_count().y) {
#pragma unroll
      for (int s = 0; s < P::kColumnSums; ++s) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum_[s][e] = Real(-0.0);
      }
      const int64_t first = chunk * kChunkRows + leaf() * kLeafRows;
      const int64_t left = has_columns ? space_.rows - first : 0;
      const int rows = static_cast<int>(left < kLeafRows ? left : kLeafRows);
#pragma unroll 1
      for (int i = 0; i < rows; i += kVectors) {
        rows_ = rows - i < kVectors ? rows - i : kVectors;
        this->row_ = this->row_in_batch_ = first + i;
        P::row(*this);
      }
      P::end_columns(*this, chunk, chunks);
    }
  }

  // Returns the address of the thread's columns in the first current row. Rows are equally spaced.
  template <class T, int kEach = 1>
  BRIDGE_DEVICE T* place(int array, int half) const {
    const bridge_program_array& a = params_.array[array];
    return static_cast<T*>(a.data) + interpreter::element_of(a, space_.cols, half, 0) +
           simt::unknown(this->row_ * this->row_stride(array) + kEach * col_);
  }
  BRIDGE_DEVICE int64_t cols() const { return space_.cols; }
  BRIDGE_DEVICE int col(int) const { return col_; }
  BRIDGE_DEVICE int rows() const { return rows_; }

  template <class Body, class End>
  BRIDGE_DEVICE void each_chunk(const Body& body, const End&) {
    if (rows_ == kVectors) return body(RowsPart<ColumnWalk, true>{*this});
    body(RowsPart<ColumnWalk, false>{*this});
  }
  template <class Body>
  BRIDGE_DEVICE void each_vector(const Body& body) const {
    constexpr int kUnroll = P::kIsLarge ? 1 : kVectors;
#pragma unroll kUnroll
    for (int q = 0; q < kVectors; ++q) body(q);
  }
  template <class Body>
  BRIDGE_DEVICE void each_element(const Body& body) const {
#pragma unroll
    for (int e = 0; e < kVector; ++e) body(e);
  }

  BRIDGE_DEVICE void draw(int64_t seed, int64_t offset, int64_t start, int q,
                          uint32_t (&words)[kVector]) const {
    this->template draw_at<true>(seed, offset, start, q, col_, words);
  }

  template <class Vector, class Part>
  BRIDGE_DEVICE void add_columns(int sum, const Vector& vector, const Part&, int) {
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum_[sum][e] = sum_[sum][e] + vector.vector.element[e];
  }

  // Adds the leaves of a chunk, into the sums of chunks or, if there is one chunk, into the result.
  template <class T>
  BRIDGE_DEVICE void end_sum(int sum, int array, int64_t chunk, int64_t chunks) const {
    // A thread writes its own vector and reads one element of each leaf.
    constexpr int kColumns = kSlots * kVector;
    Real* const shared = simt::shared_array<Real, static_cast<int>(kLeaves) * kColumns>();
    simt::sync();  // the previous contents have been read
#pragma unroll
    for (int e = 0; e < kVector; ++e)
      shared[leaf() * kColumns + e * kSlots + slot_in_block()] = sum_[sum][e];
    simt::sync();
    const int first = static_cast<int>(simt::block_index().x) * kColumns;
    for (int i = simt::thread_index(); i < kColumns; i += kGeneratedThreads) {
      const int col = first + i % kSlots * kVector + i / kSlots;
      if (col >= space_.cols) continue;
      Real leaves[kLeaves];
#pragma unroll
      for (int l = 0; l < static_cast<int>(kLeaves); ++l) leaves[l] = shared[l * kColumns + i];
      const Real total = columns::tree_sum(leaves);
      if (chunks == 1) {
        static_cast<T*>(params_.array[array].data)[col * this->col_stride(array)] =
            math::round_to<T>(total);
      } else {
        static_cast<Real*>(space_.sums)[sum * space_.sums_step + chunk * space_.cols + col] = total;
      }
    }
  }

 private:
  using RowPlaces<P>::params_;
  using RowPlaces<P>::space_;

  static BRIDGE_DEVICE int leaf() { return simt::thread_index() / kSlots; }
  static BRIDGE_DEVICE int slot_in_block() { return simt::thread_index() % kSlots; }

  int col_ = 0;
  int rows_ = 0;  // that exist among the current ones
  Real sum_[P::kColumnSums > 0 ? P::kColumnSums : 1][kVector];
};

template <class P>
struct ColumnsAligned {
  using Params = GeneratedParams<P::kArrays, P::kConstants>;
  static constexpr int kThreads = kGeneratedThreads;
  // A program without sums and random words leaves registers for one more block.
  static constexpr bool kIsSmall = P::kColumnSums == 0 && !P::kDraws;
  static constexpr int kMinBlocks = P::kMinBlocks + (P::kMinBlocks > 1 && kIsSmall);

  static BRIDGE_DEVICE void run(const Params& params) { ColumnWalk<P>(params).run(); }
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_COLUMN_DRIVER_CUH_
