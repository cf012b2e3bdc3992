// Products of a few rows with a matrix whose columns are adjacent: reads the matrix as it lies,
// once, a strip of columns of some rows at a time. The order of the sums is that of Tile::sum.
// Include this only in files that are compiled once for each instruction set.
#ifndef BRIDGE_PRODUCTS_STRIPS_H_
#define BRIDGE_PRODUCTS_STRIPS_H_

#include "cpu/tile.h"
#include "products/product.h"
#include "products/tile_size.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

constexpr int kMostStripRows = 8;
constexpr int64_t kStripBytes = 16 << 10;  // of the running sums, which stay in the nearest cache

// Whole vectors, as the sums of a row end where those of the next begin.
template <class Real>
int64_t strip_cols(int64_t rows) {
  return kStripBytes / kVectorBytes / rows * kLanes<Real>;
}

template <class Real, class T>
BRIDGE_INLINE Vector<Real> widened(const T* from) {
  Real wide[kLanes<Real>];
  for (int i = 0; i < kLanes<Real>; ++i) wide[i] = to_real<Real>(from[i]);
  return load(wide);
}

// Adds kTerms terms to the sums of kRows rows: a has the rows of a term side by side. With
// kSkipsZeros, a row takes only the terms that are not 0 in a.
template <class Real, class T, int kRows, int kTerms, bool kSkipsZeros = false>
BRIDGE_INLINE void add_terms(const Real* a, const T* b, int64_t stride, int64_t cols, Real* sums) {
  for (int64_t j = 0; j < cols; j += kLanes<Real>) {
    Vector<Real> right[kTerms];
    BRIDGE_UNROLL
    for (int p = 0; p < kTerms; ++p) {
      __builtin_prefetch(b + (p + kTerms) * stride + j);
      right[p] = widened<Real>(b + p * stride + j);
    }
    BRIDGE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (kSkipsZeros && a[i] == 0) continue;
      Vector<Real> sum = load(sums + i * cols + j);
      BRIDGE_UNROLL
      for (int p = 0; p < kTerms; ++p) sum = fma(all_of(a[p * kRows + i]), right[p], sum);
      store(sums + i * cols + j, sum);
    }
  }
}

template <class Real, class T, int kRows, int kTerms>
BRIDGE_INLINE void add_present_terms(const Real* a, const T* b, int64_t stride, int64_t cols,
                                     Real* sums) {
  int64_t zeros = 0;
  for (int i = 0; i < kTerms * kRows; ++i) zeros += a[i] == 0;
  if (zeros == 0) return add_terms<Real, T, kRows, kTerms>(a, b, stride, cols, sums);
  if (zeros == kTerms * kRows) return;
  for (int p = 0; p < kTerms; ++p)
    add_terms<Real, T, kRows, 1, true>(a + p * kRows, b + p * stride, stride, cols, sums);
}

// Adds the sums of a leaf, `size` numbers at the start of `levels`, to the tree. Those of level i
// wait at place i + 1. After the last leaf the root is at the start.
template <class Real>
BRIDGE_INLINE void add_leaf(int64_t leaf, bool is_last, int64_t size, Real* levels) {
  int64_t level = 0;
  for (; ((leaf >> level) & 1) != 0; ++level) add_to(levels, levels + (level + 1) * size, size);
  if (!is_last) return copy(levels + (level + 1) * size, levels, size);
  for (++level; (leaf + 1) >> level != 0; ++level)
    if ((((leaf + 1) >> level) & 1) != 0) add_to(levels, levels + (level + 1) * size, size);
}

// Returns the sums of all terms in `levels`, which has a place for each level of the tree and one
// more. `cols` is a multiple of a vector.
template <class Real, class T, int kRows>
const Real* strip(const Real* a, const T* b, int64_t stride, int64_t terms, int64_t cols,
                  bool skips_zeros, Real* levels) {
  // Few rows: more terms at once, as reading and writing the sums takes as long as the terms.
  constexpr int kAtOnce = kRows <= 2 ? 8 : 4;
  const int64_t size = kRows * cols;
  int64_t leaf = 0;
  for (int64_t first = 0; first < terms; first += products::kProductLeaf, ++leaf) {
    const int64_t end = smaller(first + products::kProductLeaf, terms);
    fill(levels, size, Real(-0.0));
    int64_t p = first;
    for (; skips_zeros && p + kAtOnce <= end; p += kAtOnce)
      add_present_terms<Real, T, kRows, kAtOnce>(a + p * kRows, b + p * stride, stride, cols,
                                                 levels);
    for (; skips_zeros && p < end; ++p)
      add_present_terms<Real, T, kRows, 1>(a + p * kRows, b + p * stride, stride, cols, levels);
    for (; p + kAtOnce <= end; p += kAtOnce)
      add_terms<Real, T, kRows, kAtOnce>(a + p * kRows, b + p * stride, stride, cols, levels);
    for (; p < end; ++p)
      add_terms<Real, T, kRows, 1>(a + p * kRows, b + p * stride, stride, cols, levels);
    add_leaf(leaf, end == terms, size, levels);
  }
  return levels;
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_PRODUCTS_STRIPS_H_
