// Reductions of blocks of columns; each column of a block gets the result. Include it only in files
// compiled once for each instruction set.
#ifndef BRIDGE_TILES_BLOCKS_H_
#define BRIDGE_TILES_BLOCKS_H_

#include "program/operations.h"
#include "tiles/reductions.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// Combines the numbers of a block in the order of a row of kBlock columns (row_sum_tree.h): number
// i with number i + h, for h = kBlock / 2, kBlock / 4, ..., 1.
template <int kBlock, class Number, class Combine>
inline __attribute__((always_inline)) Number folded(const Number* from, const Combine& combine) {
  Number part[kBlock / 2];
  for (int32_t i = 0; i < kBlock / 2; ++i) part[i] = combine(from[i], from[i + kBlock / 2]);
  if constexpr (kBlock > 2) {
    return folded<kBlock / 2>(part, combine);
  } else {
    return part[0];
  }
}

// `to` may be `from`. `count` is a multiple of kBlock.
template <int kBlock, class Real>
void add_blocks(const Real* from, Real* to, int64_t count) {
  for (int64_t i = 0; i < count; i += kBlock) {
    const Real sum = folded<kBlock>(
        from + i, [](Real a, Real b) __attribute__((always_inline)) { return a + b; });
    for (int32_t j = 0; j < kBlock; ++j) to[i + j] = sum;
  }
}

template <int kBlock, class Real>
void take_largest_of_blocks(const Real* from, Real* to, int64_t count) {
  using Order = typename math::Format<Real>::SignedBits;
  for (int64_t i = 0; i < count; i += kBlock) {
    Order order[kBlock];
    for (int32_t j = 0; j < kBlock; ++j) order[j] = order_of(from[i + j]);
    const Order most = folded<kBlock>(
        order, [](Order a, Order b) __attribute__((always_inline)) { return a > b ? a : b; });
    const Real largest = number_of<Real>(most);
    for (int32_t j = 0; j < kBlock; ++j) to[i + j] = largest;
  }
}

// Writes columns: element i is in column `first` + i % `width`.
template <int kBlock, class Real>
void find_largest_of_blocks(const Real* from, int64_t* to, int64_t count, int64_t first,
                            int64_t width) {
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t place = first + i % width + place_of_largest(from + i, kBlock);
    for (int32_t j = 0; j < kBlock; ++j) to[i + j] = place;
  }
}

// Calls run with the number of columns of a block as a constant.
template <class Run>
void with_block(int32_t block, const Run& run) {
  if (block == 16) return run(std::integral_constant<int, 16>());
  if (block == 32) return run(std::integral_constant<int, 32>());
  if (block == 64) return run(std::integral_constant<int, 64>());
  run(std::integral_constant<int, 128>());
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TILES_BLOCKS_H_
