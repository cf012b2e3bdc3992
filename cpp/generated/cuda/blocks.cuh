// Reductions of blocks of columns, and arrays with a number for each block, in a generated kernel.
// `W` is the row driver (row_driver.cuh). A vector of a thread lies within one block, so a thread
// has one number of a block for each of its vectors.
#ifndef BRIDGE_GENERATED_CUDA_BLOCKS_CUH_
#define BRIDGE_GENERATED_CUDA_BLOCKS_CUH_

#include "cuda/vector.h"
#include "program/order.h"

namespace bridge::interpreter {

// The columns of a block: the high bits of a column number vectors of a thread, the next bits
// threads, the low bits the elements of a vector.
template <class W, int kBlock>
struct BlockShape {
  static constexpr int kOfStep = kBlock < W::kStep ? kBlock : W::kStep;
  static constexpr int kLanes = kOfStep / W::kVector;
  // Rows that a kernel takes have whole blocks, so larger blocks are never run.
  static constexpr int kAll = kBlock / kOfStep;
  static constexpr int kVectors = kAll < W::kVectors ? kAll : W::kVectors;
  static constexpr int kBlocks = W::kVectors / kVectors;
  static_assert(kBlocks * kVectors == W::kVectors && kLanes > 0);
};

// Combines number i of a block with number i + h, for h = kBlock / 2, kBlock / 4, ..., 1, as in a
// row of kBlock columns (row_sum_tree.h). All threads of a warp call it.
template <class W, int kBlock, class Real>
class BlockSum {
  using Shape = BlockShape<W, kBlock>;

 public:
  BRIDGE_DEVICE void put(int q, int e, Real x, int64_t) { value_[q][e] = x; }
  BRIDGE_DEVICE void end() {
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      Real part[Shape::kVectors][W::kVector];
#pragma unroll
      for (int q = 0; q < Shape::kVectors; ++q) {
#pragma unroll
        for (int e = 0; e < W::kVector; ++e) part[q][e] = value_[block * Shape::kVectors + q][e];
      }
#pragma unroll
      for (int half = Shape::kVectors / 2; half > 0; half /= 2) {
#pragma unroll
        for (int q = 0; q < half; ++q) {
#pragma unroll
          for (int e = 0; e < W::kVector; ++e) part[q][e] = part[q][e] + part[q + half][e];
        }
      }
#pragma unroll
      for (int bit = Shape::kLanes / 2; bit > 0; bit /= 2) {
#pragma unroll
        for (int e = 0; e < W::kVector; ++e)
          part[0][e] = part[0][e] + simt::shuffle_xor(part[0][e], bit);
      }
#pragma unroll
      for (int half = W::kVector / 2; half > 0; half /= 2) {
#pragma unroll
        for (int e = 0; e < half; ++e) part[0][e] = part[0][e] + part[0][e + half];
      }
      sum_[block] = part[0][0];
    }
  }
  BRIDGE_DEVICE Real take(int q) const { return sum_[q / Shape::kVectors]; }

 private:
  Real value_[W::kVectors][W::kVector] = {};
  Real sum_[Shape::kBlocks];
};

template <class W, int kBlock, class Real>
class BlockMax {
  using Shape = BlockShape<W, kBlock>;
  using Order = typename math::Format<Real>::SignedBits;

 public:
  BRIDGE_DEVICE void put(int q, int e, Real x, int64_t) {
    const Order order = order_of(x);
    most_[q] = e == 0 || order > most_[q] ? order : most_[q];
  }
  BRIDGE_DEVICE void end() {
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      Order most = most_[block * Shape::kVectors];
#pragma unroll
      for (int q = 1; q < Shape::kVectors; ++q)
        most = larger(most, most_[block * Shape::kVectors + q]);
#pragma unroll
      for (int bit = Shape::kLanes / 2; bit > 0; bit /= 2)
        most = larger(most, simt::shuffle_xor(most, bit));
      largest_[block] = number_of<Real>(most);
    }
  }
  BRIDGE_DEVICE Real take(int q) const { return largest_[q / Shape::kVectors]; }

 private:
  static BRIDGE_DEVICE Order larger(Order a, Order b) { return a > b ? a : b; }

  Order most_[W::kVectors] = {};
  Real largest_[Shape::kBlocks];
};

// The column of a block's largest number, the first on ties; zeros of both signs are equal.
template <class W, int kBlock, class Real>
class BlockArgmax {
  using Shape = BlockShape<W, kBlock>;
  using Order = typename math::Format<Real>::SignedBits;

 public:
  BRIDGE_DEVICE void put(int q, int e, Real x, int64_t col) {
    const Order order = order_of(x == 0 ? Real(0) : x);
    if (e != 0 && order <= most_[q]) return;
    most_[q] = order;
    place_[q] = col;
  }
  BRIDGE_DEVICE void end() {
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
      const int first = block * Shape::kVectors;
      Order most = most_[first];
      int64_t place = place_[first];
#pragma unroll
      for (int q = 1; q < Shape::kVectors; ++q)
        choose(most, place, most_[first + q], place_[first + q]);
#pragma unroll
      for (int bit = Shape::kLanes / 2; bit > 0; bit /= 2) {
        const Order other = simt::shuffle_xor(most, bit);
        choose(most, place, other, simt::shuffle_xor(place, bit));
      }
      found_[block] = place;
    }
  }
  BRIDGE_DEVICE int64_t take(int q) const { return found_[q / Shape::kVectors]; }

 private:
  static BRIDGE_DEVICE void choose(Order& most, int64_t& place, Order other, int64_t at) {
    if (other < most || (other == most && at >= place)) return;
    most = other;
    place = at;
  }

  Order most_[W::kVectors] = {};
  int64_t place_[W::kVectors] = {};
  int64_t found_[Shape::kBlocks];
};

// An operand with a number for each block, loaded for a whole chunk before its first use.
template <class W, class T, int kBlock>
class BlockLoad {
 public:
  BRIDGE_DEVICE BlockLoad(const W& driver, int array)
      : from_(driver.template place<T>(array, 0)), stride_(driver.col_stride(array)) {}

  template <class Part>
  BRIDGE_DEVICE void load(const Part& part) {
#pragma unroll
    for (int q = 0; q < W::kVectors; ++q)
      number_[q] = part.is_in(q, 0) ? from_[part.col(q) / kBlock * stride_] : T{};
  }
  BRIDGE_DEVICE typename W::Real real(int q) const {
    return simt::widen<typename W::Real>(number_[q]);
  }

 private:
  const T* from_;
  int64_t stride_;
  T number_[W::kVectors];
};

// A result with a number for each block: the thread of its first column writes it.
template <class W, class T, int kBlock>
class BlockStore {
 public:
  BRIDGE_DEVICE BlockStore(const W& driver, int array)
      : to_(driver.template place<T>(array, 0)), stride_(driver.col_stride(array)) {}

  BRIDGE_DEVICE void put(int e, typename W::Real value) {
    if (e == 0) number_ = math::round_to<T>(value);
  }
  template <class Part>
  BRIDGE_DEVICE void store(const Part& part, int q) const {
    const int col = part.col(q);
    if (col % kBlock == 0 && part.is_written(q)) to_[col / kBlock * stride_] = number_;
  }

 private:
  T* to_;
  int64_t stride_;
  T number_{};
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_BLOCKS_CUH_
