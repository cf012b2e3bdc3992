// Products of a few rows with a matrix whose terms are adjacent, such as a weight [out, in]: reads
// the matrix as it lies, once, and turns squares of it in registers. The order of the sums is that
// of Tile::sum. Include this only in files that are compiled once for each instruction set.
#ifndef BRIDGE_PRODUCTS_ACROSS_H_
#define BRIDGE_PRODUCTS_ACROSS_H_

#include "cpu/tile.h"
#include "products/packing.h"
#include "products/product.h"
#include "products/strips.h"
#include "products/tile_size.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

constexpr int kMostRowsAcross = 4;

// Sums of kRows rows and the columns of a tile. a has the rows of a term side by side.
template <class Real, class T, int kRows>
class Across {
 public:
  static constexpr int kLanes = BRIDGE_ISA_NAMESPACE::kLanes<Real>;
  static constexpr int kCols = kTileVectors * kLanes, kSize = kRows * kCols;

  // Returns the sums of all terms in `levels`, which has a place for each level of the tree and one
  // more. Columns from `cols` on have any numbers.
  static const Real* sum(const Real* a, const T* b, int64_t stride, int64_t terms, int64_t cols,
                         Real* levels) {
    const T* columns[kCols];
    for (int i = 0; i < kCols; ++i) columns[i] = b + (i < cols ? i : 0) * stride;
    int64_t leaf = 0;
    for (int64_t first = 0; first < terms; first += products::kProductLeaf, ++leaf) {
      const int64_t end = smaller(first + products::kProductLeaf, terms);
      sum_leaf(a, columns, first, end, levels);
      add_leaf(leaf, end == terms, kSize, levels);
    }
    return levels;
  }

 private:
  // Takes the columns of a vector at a time: the processor follows no more streams at once.
  static BRIDGE_INLINE void sum_leaf(const Real* a, const T* const (&columns)[kCols], int64_t first,
                                     int64_t end, Real* to) {
    for (int v = 0; v < kTileVectors; ++v)
      sum_vector(a, columns + v * kLanes, first, end, to + v * kLanes);
  }

  static BRIDGE_INLINE void sum_vector(const Real* a, const T* const* columns, int64_t first,
                                       int64_t end, Real* to) {
    constexpr int kAhead = 1024 / static_cast<int>(sizeof(T));  // prefetched elements of a column
    Vector<Real> sums[kRows];
    for (int i = 0; i < kRows; ++i) sums[i] = all_of(Real(-0.0));
    int64_t p = first;
    for (; p + kLanes <= end; p += kLanes) {
      Vector<Real> square[kLanes];
      BRIDGE_UNROLL
      for (int i = 0; i < kLanes; ++i) {
        const T* const from = columns[i] + p;
        __builtin_prefetch(from + kAhead);
        square[i] = widened<Real>(from);
      }
      transpose<Real>(square);
      BRIDGE_UNROLL
      for (int t = 0; t < kLanes; ++t) {
        BRIDGE_UNROLL
        for (int i = 0; i < kRows; ++i)
          sums[i] = fma(all_of(a[(p + t) * kRows + i]), square[t], sums[i]);
      }
    }
    for (; p < end; ++p) {
      Real right[kLanes];
      for (int j = 0; j < kLanes; ++j) right[j] = to_real<Real>(columns[j][p]);
      for (int i = 0; i < kRows; ++i) sums[i] = fma(all_of(a[p * kRows + i]), load(right), sums[i]);
    }
    for (int i = 0; i < kRows; ++i) store(to + i * kCols, sums[i]);
  }
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_PRODUCTS_ACROSS_H_
