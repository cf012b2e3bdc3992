// The row driver of a program generated as CUDA C++ (bridge/lang/emission/cuda.py). Include it only
// in generated files. Every order of additions is the order of row_sum_tree.h.
//
// A generated program is a struct with constants and row(driver), the code of a thread for a row.
// Per-row values are variables. Each tile section is a loop over chunks, over their vectors and
// over the elements of these.
//
// A row of at most one chunk may have a part of a warp. A longer row has a warp for each chunk, if
// a block, or a cluster of blocks, has enough warps; otherwise each warp takes one chunk after the
// other. The blocks of a cluster exchange their results for a row: each has all of them in its
// shared memory. A thread has kVectors vectors of kVector elements of a chunk: vector q of thread t
// has the columns from q kGroup kVector + t kVector on.
#ifndef BRIDGE_GENERATED_CUDA_ROW_DRIVER_CUH_
#define BRIDGE_GENERATED_CUDA_ROW_DRIVER_CUH_

#include "generated/cuda/blocks.cuh"
#include "generated/cuda/row_loops.cuh"
#include "generated/cuda/streams.cuh"
#include "generated/cuda/sums.cuh"
#include "program/row_leaves.cuh"

namespace bridge::interpreter {

template <class P, int kGroup_, int kVectors_, bool kIsAligned_, bool kIsResident_, Extent kExtent>
class RowDriver : public RowLoops<P, kGroup_, kVectors_, kIsAligned_, kIsResident_, kExtent> {
 public:
  using Loops = RowLoops<P, kGroup_, kVectors_, kIsAligned_, kIsResident_, kExtent>;
  using Loops::col, Loops::each_chunk, Loops::is_cluster, Loops::is_shared;
  using Loops::kGroup, Loops::kHeldPiece, Loops::kHolds, Loops::kIsAligned, Loops::kIsShort,
      Loops::kStages;
  using Loops::kVector, Loops::kVectors;
  using typename Loops::Params, typename Loops::Real;

  explicit BRIDGE_DEVICE RowDriver(const Params& params) : Loops(params) {}

  BRIDGE_DEVICE void run() {
    const int thread = simt::thread_index(), warp = thread / simt::kWarpThreads;
    const int in_warp = thread % simt::kWarpThreads;
    const int warps =  // of a block
        static_cast<int>(static_cast<uint32_t>(space_.threads) / simt::kWarpThreads);
    lane_ = in_warp % kGroup;
    warp_ = is_shared() ? warp : 0;
    if (is_cluster()) warp_ += simt::cluster_rank() * warps;
    if constexpr (kHolds)
      held_ = simt::found_shared(simt::dynamic_shared<char>() + held_before(0, warp) +
                                 lane_ * kHeldPiece);
    constexpr int kRows = simt::kWarpThreads / kGroup;  // of a warp
    const int teams = is_shared() ? 1 : warps * kRows;
    // The grid covers all rows, or all leaves of rows.
    int64_t first = static_cast<int64_t>(simt::block_index().x >> blocks_log2()) * teams;
    if (!is_shared()) first += warp * kRows;
    const int64_t count = P::kColumnSums > 0 ? space_.leaves.count : space_.rows;
    if (first >= count) return;
    if (P::kCells > 0 && is_cluster()) simt::arrive_at_cluster();
    // The threads of a warp stay converged: at the end some may have no row.
    const int64_t own = first + in_warp / kGroup;
    has_row_ = own < count;
    if constexpr (P::kColumnSums > 0) return go_down(has_row_ ? own : first);
    find(has_row_ ? own : first);
    P::row(*this);
  }

  // ---- Arrays. ----

  template <class T>
  BRIDGE_DEVICE void store_row(int array, Real value) const {
    if (has_row_ && lane_ == 0 && warp_ == 0)
      *this->template place<T>(array, 0) = math::round_to<T>(value);
  }
  // Adds a vector to a column sum. Each thread has its own sums: in shared memory if rows are short
  // or resident, otherwise in global memory, where another kernel adds the sums of all leaves.
  template <class Vector, class Part>
  BRIDGE_DEVICE void add_columns(int sum, const Vector& vector, const Part& part, int q) const {
    if constexpr (kKeepsSums) {
      if (kIsShort && !has_row_) return;
      this->each_piece(sum, q, [&](int first, Piece* kept) {
        Piece piece;
        piece.read(reinterpret_cast<const char*>(kept));
#pragma unroll
        for (int e = 0; e < kPiece; ++e)
          piece.element[e] = piece.element[e] + vector.vector.element[first + e];
        piece.write(reinterpret_cast<char*>(kept));
      });
    } else if constexpr (kIsAligned) {
      simt::sync_warp();  // keeps the compiler from reading the sums of all vectors at once
      if (!part.is_in(q, 0)) return;
      Real* const to = lane_sums(sum) + part.template offset<1>(q, 0);
      Pack<Real, kVector> kept;
      kept.read(reinterpret_cast<const char*>(to));
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        kept.element[e] = kept.element[e] + vector.vector.element[e];
      kept.write(reinterpret_cast<char*>(to));
    } else {
      Real* const to = lane_sums(sum) + part.col(q);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        if (part.is_in(q, e)) to[e] = to[e] + vector.vector.element[e];
      }
    }
  }

  // Stages an operand that all rows share: converts it to numbers once for all rows of the thread.
  template <class T>
  BRIDGE_DEVICE void stage(int number, int array) {
    Load<RowDriver, T, false, false, true> x(*this, array, 0);
    each_own([&](const auto& part, int q) {
      x.load_vector(part, q);
      this->each_piece(P::kColumnSums + number, q, [&](int first, Piece* kept) {
        Piece piece;
#pragma unroll
        for (int e = 0; e < kPiece; ++e) piece.element[e] = x.real(0, first + e);
        piece.write(reinterpret_cast<char*>(kept));
      });
    });
  }
  BRIDGE_DEVICE void draw(int64_t seed, int64_t offset, int64_t start, int q,
                          uint32_t (&words)[kVector]) const {
    this->template draw_at<false>(seed, offset, start, 0, col(q), words);
  }

 private:
  using Loops::blocks_log2, Loops::find, Loops::held_before;
  using Loops::has_row_, Loops::held_, Loops::lane_, Loops::row_, Loops::space_, Loops::warp_;
  using Loops::kKeepsSums, Loops::kPiece;
  using typename Loops::Piece;

  // Runs the rows of a leaf one after the other. The threads of a warp stay converged here too.
  BRIDGE_DEVICE void go_down(int64_t number) {
    leaf_ = number;
    begin_sums();
    const RowsOfLeaf leaf(space_.leaves, number);
    const int turns = kIsShort ? space_.leaves.rows : leaf.count;
    int own = has_row_ ? leaf.count : 0;
    find(leaf.first);
    if constexpr (kStages) P::stage(*this);
#pragma unroll 1
    for (int left = turns; left > 0; --left) {
      if (kIsShort) has_row_ = own > 0;
      P::row(*this);
      --own;
      if (left > 1) find(row_ + (!kIsShort || own > 0));
    }
    if (kIsShort) has_row_ = own + turns > 0;
    if constexpr (kKeepsSums) end_sums();
  }
  // A sum starts at -0.0, the exact identity of addition.
  BRIDGE_DEVICE void begin_sums() {
    each_sum([&](const auto& part, int sum, int q) {
      Store<RowDriver, Real> none;
#pragma unroll
      for (int e = 0; e < kVector; ++e) none.put_term(e, Real(-0.0));
      if constexpr (!kKeepsSums) return none.store(part, q, lane_sums(sum), false, 1, 0);
      this->each_piece(sum, q, [&](int, Piece* kept) {
        Piece piece;
        memcpy(&piece, &none, sizeof piece);
        piece.write(reinterpret_cast<char*>(kept));
      });
    });
  }
  BRIDGE_DEVICE void end_sums() {
    each_sum([&](const auto& part, int sum, int q) {
      Store<RowDriver, Real> total;
      this->each_piece(sum, q, [&](int first, Piece* kept) {
        Piece piece;
        piece.read(reinterpret_cast<const char*>(kept));
#pragma unroll
        for (int e = 0; e < kPiece; ++e) total.put_term(first + e, piece.element[e]);
      });
      total.store(part, q, lane_sums(sum), false, 1, 0);
    });
  }

  template <class Body>
  BRIDGE_DEVICE void each_sum(const Body& body) {
    each_own([&](const auto& part, int q) {
#pragma unroll 1
      for (int sum = 0; sum < P::kColumnSums; ++sum) body(part, sum, q);
    });
  }
  // Calls body(part, q) for each vector that the thread has of a row.
  template <class Body>
  BRIDGE_DEVICE void each_own(const Body& body) {
    each_chunk(
        [&](const auto& part) {
#pragma unroll 1
          for (int q = 0; q < kVectors; ++q) {
            if (part.reaches(q)) body(part, q);
          }
        },
        [] {});
  }
  BRIDGE_DEVICE Real* lane_sums(int sum) const {
    return static_cast<Real*>(space_.sums) + (sum * space_.leaves.count + leaf_) * space_.cols;
  }

  int64_t leaf_ = 0;  // leaf of the current row
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_ROW_DRIVER_CUH_
