// Reductions along a row in a generated kernel, in the order of row_sum_tree.h. `W` is the row
// driver (RowDriver in row_driver.cuh).
#ifndef BRIDGE_GENERATED_CUDA_SUMS_CUH_
#define BRIDGE_GENERATED_CUDA_SUMS_CUH_

#include "drivers/rows/row_tree.cuh"
#include "generated/cuda/call.h"
#include "program/order.h"

namespace bridge::interpreter {

// The terms of a vector. Elements that the row lacks are -0.0, the identity of addition.
template <class W>
struct Terms {
  using Real = typename W::Real;
  Real value[W::kVector];

  BRIDGE_DEVICE Terms() {
#pragma unroll
    for (int e = 0; e < W::kVector; ++e) value[e] = Real(-0.0);
  }
  BRIDGE_DEVICE void put(bool is_in, int e, Real x) { value[e] = is_in ? x : Real(-0.0); }
};

// Returns the smallest power of two of at least `count`, but at most the threads of a warp.
BRIDGE_DEVICE int lanes_for(int count) {
  int lanes = 1;
#pragma unroll 1
  while (lanes < count && lanes < simt::kWarpThreads) lanes *= 2;
  return lanes;
}

// Up to this many cells, every thread reads all of them, because shuffles take longer.
constexpr int kFewCells = 8;

// Reduces `count` of kCells adjacent cells, more than half of them.
template <class Op, int kCells, class Real>
BRIDGE_DEVICE Real reduced_cells(const Real* cells, int count) {
  Pack<Real, kCells> node;
  node.read(reinterpret_cast<const char*>(cells));
#pragma unroll
  for (int i = kCells / 2 + 1; i < kCells; ++i) {
    if (i >= count) node.element[i] = Op::template identity<Real>();
  }
#pragma unroll
  for (int width = 1; width < kCells; width *= 2) {
#pragma unroll
    for (int i = 0; i < kCells; i += 2 * width)
      node.element[i] = Op::of(node.element[i], node.element[i + width]);
  }
  return node.element[0];
}

template <class Op, int kCells, class Real, int kCount, class... Cells>
BRIDGE_DEVICE void reduce_cells(Real (&to)[kCount], int count, const Cells*... cells) {
  int i = 0;
  ((to[i++] = reduced_cells<Op, kCells>(cells, count)), ...);
}

// Reduces 2 to 8 cells of each array, adjacent cells first.
template <class Op, class Real, int kCount, class... Cells>
BRIDGE_DEVICE void reduce_few(Real (&to)[kCount], int count, const Cells*... cells) {
  if (count > 4) return reduce_cells<Op, 8>(to, count, cells...);
  if (count > 2) return reduce_cells<Op, 4>(to, count, cells...);
  reduce_cells<Op, 2>(to, count, cells...);
}

// The maximum in the order of order.h; NaN if any number is NaN.
struct Largest : rows::Largest {
  template <class Real>
  static BRIDGE_DEVICE Real of(Real a, Real b) {
    return larger_number(a, b);
  }
};

// The sum of a row, chunk by chunk.
template <class W>
class RowSum {
 public:
  using Real = typename W::Real;

  // Adds the terms of vector q. Vectors come in the order of each_vector.
  BRIDGE_DEVICE void add(const W& driver, int q, const Terms<W>& terms) {
    const int s = q % W::kUsed, k = q % W::kOfChunk / W::kUsed;
#pragma unroll
    for (int e = 0; e < W::kVector; ++e) {
      half_[e] = k % 2 == 0 ? terms.value[e] : half_[e] + terms.value[e];
      if (k <= 1) part_[s][e] = half_[e];
      if (k == 3) part_[s][e] = part_[s][e] + half_[e];
    }
    // The fold comes before the next chunk begins: there are no registers for the partial sums of
    // several chunks.
    if constexpr (W::kIsWide) {
      if (k == W::kQuarters - 1)
        of_chunk_[q / W::kOfChunk] = rows::fold_elements<By>(part_[0], driver.lane());
    }
  }
  // Called after the last vector that a thread has at once.
  BRIDGE_DEVICE void end_chunk(const W& driver) {
    if constexpr (W::kIsWide) {
      root_ = rows::fold_chunks<W::kVector, By>(of_chunk_, driver.lane());
      return;
    }
#pragma unroll
    for (int width = W::kUsed / 2; width > 0; width /= 2) {
#pragma unroll
      for (int s = 0; s < width; ++s) {
#pragma unroll
        for (int e = 0; e < W::kVector; ++e) part_[s][e] = part_[s][e] + part_[s + width][e];
      }
    }
    // The barrier keeps a compiler from writing the fold twice if it does not see that the threads
    // have converged.
    simt::sync_warp();
    root_ = rows::fold_group<W::kGroup, By>(part_[0], driver.lane());
  }
  // Writes the sum of the chunk, or chunks, to shared memory for the other warps.
  BRIDGE_DEVICE void leave(const W& driver, int cell) const {
    driver.leave(cell, driver.node(), root_);
  }
  // Returns the row's sum, if no other warp has a part of the row.
  BRIDGE_DEVICE Real root() const { return root_; }

 protected:
  Real root_ = Real(-0.0);

 private:
  using By = rows::ByPredicates;

  Real part_[W::kUsed][W::kVector];
  Real half_[W::kVector];
  Real of_chunk_[W::kChunks];
};

// The row sums of one section. If a warp has the whole row, its sum is the root of RowSum.
// Otherwise the warps have written the nodes of chunks to cells in shared memory, and end() adds
// them after all warps have finished the row. Each thread reads one node in a round, and adjacent
// nodes are added first. Each thread keeps the sum of one round, and the sums of rounds are added
// last. Groups of threads that are as large as the number of nodes all compute the same sum.
template <int... kCell>
class RowSums {
 public:
  template <class W, class Real>
  static BRIDGE_DEVICE void end(const W& driver, Real (&sum)[sizeof...(kCell)]) {
    if (!driver.is_shared()) return;
    const int chunks = driver.nodes();
    if (chunks <= kFewCells) {
      return reduce_few<rows::Sum>(sum, chunks, driver.template cells<Real>(kCell)...);
    }
    const int group = lanes_for(chunks);
    const int turns = (chunks + simt::kWarpThreads - 1) / simt::kWarpThreads;
    const int turn_group = lanes_for(turns);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = Real(-0.0);
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
      const int chunk = turn * simt::kWarpThreads + (driver.lane() & (group - 1));
      const bool is_own = turn == (driver.lane() & (turn_group - 1));
      const Real node[] = {
          (chunk < chunks ? driver.template left<Real>(kCell, chunk) : Real(-0.0))...};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const Real all = added_up(node[i], group);
        if (is_own) sum[i] = all;
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = added_up(sum[i], turn_group);
  }

 private:
  static constexpr int kCount = sizeof...(kCell);

  template <class Real>
  static BRIDGE_DEVICE Real added_up(Real value, int group) {
#pragma unroll 1
    for (int bit = 1; bit < group; bit *= 2) value = value + simt::shuffle_xor(value, bit);
    return value;
  }
};

// The number of a row's elements for which a condition holds, as a sum of ones. It is the same in
// any order.
template <class W>
class RowCount : public RowSum<W> {
 public:
  BRIDGE_DEVICE void put(bool is_counted) { count_ += is_counted ? 1 : 0; }
  // Counts the elements not less than the row's largest number; few threads have any. A whole chunk
  // in registers is counted at once, before other computations need the registers; other chunks are
  // counted vector by vector. kSetsApart: counted elements become -infinity.
  template <bool kSetsApart, class Part, class Load, class Largest>
  BRIDGE_DEVICE void put_chunk(const Part& part, Load& x, const Largest& largest) {
    if constexpr (Load::kIsWhole) {
      if (!largest.is_own()) return;
#pragma unroll
      for (int q = 0; q < W::kVectors; ++q) put_largest<kSetsApart>(part, q, x, largest.number());
    }
  }
  template <bool kSetsApart, class Part, class Load, class Largest>
  BRIDGE_DEVICE void put_vector(const Part& part, int q, Load& x, const Largest& largest) {
    if constexpr (!Load::kIsWhole) {
      if (largest.is_own()) put_largest<kSetsApart>(part, q, x, largest.number());
    }
  }
  BRIDGE_DEVICE void end_chunk(const W& driver) {
    if constexpr (W::kGroup == simt::kWarpThreads) {
      count_ = simt::sum_in_warp(count_);
    } else {
#pragma unroll
      for (int bit = W::kGroup / 2; bit > 0; bit /= 2)
        count_ = count_ + simt::shuffle_xor(count_, bit);
    }
    this->root_ = !W::kStays || driver.reaches(0) ? Real(count_) : Real(-0.0);
    count_ = 0;
  }

 private:
  using Real = typename W::Real;

  template <bool kSetsApart, class Part, class Load>
  BRIDGE_DEVICE void put_largest(const Part& part, int q, Load& x, Real largest) {
    // Reads a copy, because a compiler would keep values computed from the original.
    const Load copy = x.copied(q);
#pragma unroll
    for (int e = 0; e < W::kVector; ++e) {
      const bool is_largest = part.is_in(q, e) && !(copy.real(q, e) < largest);
      put(is_largest);
      if (kSetsApart && is_largest) x.put_lowest(q, e);
    }
  }

  int count_ = 0;
};

// The largest number of a row, in the order of order.h. Elements of 16 bits are compared as they
// are in memory, two at once.
template <class W, class T>
class RowLargest {
 public:
  using Real = typename W::Real;

  BRIDGE_DEVICE void put(bool is_in, Real x) {
    if (is_in) largest_ = larger_number(x, largest_);
  }
  template <class Part, class Load>
  BRIDGE_DEVICE void put_vector(const Part& part, int q, const Load& x) {
    if constexpr (kHasPairs) {
      if (!part.is_in(q, 0)) return;
#pragma unroll
      for (int i = 0; i < W::kVector / 2; ++i) {
        pair_ = simt::larger_pair<T>(x.pair(q, i), pair_);
      }
    } else {
#pragma unroll
      for (int e = 0; e < W::kVector; ++e) put(part.is_in(q, e), x.real(q, e));
    }
  }
  // Called after the thread's last element of the row.
  BRIDGE_DEVICE void share(const W& driver, int cell) {
    if constexpr (kHasPairs) {
      const math::FloatPair both = math::to_float_pair<T>(pair_);
      largest_ = larger_number(Real(both.first), Real(both.second));
    }
    own_ = largest_;
    exchange();
    if (driver.leaves()) driver.leave(cell, driver.warp(), largest_);
  }
  BRIDGE_DEVICE void end(const W& driver, int cell) {
    if (driver.is_shared()) end_shared(driver, cell);
    is_own_ = !(own_ < largest_);
  }
  BRIDGE_DEVICE Real number() const { return largest_; }
  // Returns true if the thread has an element equal to the largest. Unspecified if that is NaN.
  BRIDGE_DEVICE bool is_own() const { return is_own_; }

 private:
  BRIDGE_DEVICE void end_shared(const W& driver, int cell) {
    if (driver.warps() <= kFewCells) {
      Real largest[1];
      reduce_few<Largest>(largest, driver.warps(), driver.template cells<Real>(cell));
      largest_ = largest[0];
      return;
    }
    const int group = lanes_for(driver.warps());
#pragma unroll 1
    for (int i = driver.lane() & (group - 1); i < driver.warps(); i += simt::kWarpThreads)
      largest_ = larger_number(driver.template left<Real>(cell, i), largest_);
#pragma unroll 1
    for (int bit = 1; bit < group; bit *= 2)
      largest_ = larger_number(simt::shuffle_xor(largest_, bit), largest_);
  }
  static constexpr bool kHasPairs =
      W::kIsAligned && (std::is_same_v<T, math::bfloat16> || std::is_same_v<T, math::float16>);

  // Exchanges the largest number with the other threads of the row in the warp.
  BRIDGE_DEVICE void exchange() {
#pragma unroll
    for (int bit = W::kGroup / 2; bit > 0; bit /= 2)
      largest_ = larger_number(simt::shuffle_xor(largest_, bit), largest_);
  }

  Real largest_ = Real(-__builtin_inf()), own_;
  bool is_own_;
  uint32_t pair_ = kHasPairs ? simt::lowest_pair<T>() : 0;
};

// The column of the first largest number of a row, where -0 equals +0.
template <class W>
class RowPlaceOfLargest {
 public:
  using Real = typename W::Real;
  using Order = typename math::Format<Real>::SignedBits;

  BRIDGE_DEVICE void put(bool is_in, int col, Real x) {
    if (!is_in) return;
    const Order order = order_of(x == 0 ? Real(0) : x);
    if (order == best_ && col < place_) place_ = col;
    if (order <= best_) return;
    best_ = order;
    place_ = col;
  }
  BRIDGE_DEVICE void share(const W& driver, int cell) {
    exchange();
    if (!driver.leaves()) return;
    driver.leave(cell, driver.warp(), best_);
    driver.leave(cell + 1, driver.warp(), place_);
  }
  BRIDGE_DEVICE void end(const W& driver, int cell) {
    if (!driver.is_shared()) return;
    for (int i = driver.lane(); i < driver.warps(); i += simt::kWarpThreads)
      take(driver.template left<Order>(cell, i), driver.template left<int>(cell + 1, i));
    exchange();
  }
  BRIDGE_DEVICE int64_t place() const { return place_; }

 private:
  BRIDGE_DEVICE void exchange() {
#pragma unroll
    for (int bit = W::kGroup / 2; bit > 0; bit /= 2)
      take(simt::shuffle_xor(best_, bit), simt::shuffle_xor(place_, bit));
  }
  BRIDGE_DEVICE void take(Order best, int place) {
    if (best > best_ || (best == best_ && place < place_)) place_ = place;
    if (best > best_) best_ = best;
  }

  Order best_ = lowest_order<Real>();
  int place_ = 0;
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_SUMS_CUH_
