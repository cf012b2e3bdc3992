// Tiles of a product: sums of packed panels. The bits of a result depend on the order of the sum in
// Tile::sum, and on nothing else. Include this only in files that are compiled once for each
// instruction set.
#ifndef BRIDGE_PRODUCTS_TILE_SUM_H_
#define BRIDGE_PRODUCTS_TILE_SUM_H_

#include <utility>

#include "products/product.h"
#include "products/tile_size.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using products::kDeep;
using products::kDeepLeaves;
using products::kProductLeaf;

constexpr int log2_of(int64_t number) { return number <= 1 ? 0 : 1 + log2_of((number + 1) / 2); }
constexpr int kLowLevels = log2_of(kDeepLeaves);

inline int64_t leaves_of(int64_t terms) { return (terms + kProductLeaf - 1) / kProductLeaf; }

// The number of levels of the tree whose sums wait for later panels.
inline int64_t high_levels(int64_t terms) {
  int64_t levels = 0;
  for (int64_t deep = (terms + kDeep - 1) / kDeep; deep > 1; deep = (deep + 1) / 2) ++levels;
  return levels;
}

// The number of a tile's rows with the factor 0.
enum Zeros : uint8_t { kNoZero, kSomeZeros, kAllZeros };

// The zeros of a leaf. The terms are marked only if they differ.
struct LeafZeros {
  Zeros of_all;
  Zeros of_terms[kProductLeaf];

  // Reads `terms` groups of `rows` numbers, at most a leaf.
  template <class Real>
  void mark(const Real* panel, int64_t rows, int64_t terms) {
    const int64_t count = rows * terms;
    uint8_t is_zero[kTileRows * kProductLeaf];
    int32_t zeros = 0;
    for (int64_t i = 0; i < count; ++i) {
      is_zero[i] = panel[i] == 0;
      zeros += panel[i] == 0;
    }
    of_all = zeros == 0 ? kNoZero : zeros == count ? kAllZeros : kSomeZeros;
    if (of_all != kSomeZeros) return;
    for (int64_t p = 0; p < terms; ++p) {
      int32_t own = 0;
      for (int64_t i = 0; i < rows; ++i) own += is_zero[p * rows + i];
      of_terms[p] = own == 0 ? kNoZero : own == rows ? kAllZeros : kSomeZeros;
    }
  }
};

// A tile of the result: kRows rows and the columns of kTileVectors vectors.
template <class Real, int kRows>
struct Tile {
  using V = Vector<Real>;
  static constexpr int kCols = kTileVectors * kLanes<Real>, kSize = kTileRows * kCols;

  // Adds the leaves of `terms` terms to the tree. `leaf` is the number of the first. The sums of
  // level i, over 2^i leaves, wait in `low` or, from kLowLevels on, in `high`. If these are the
  // last terms, writes the root to `low`. `zeros` is null, or has the zeros of each leaf.
  static void sum(const Real* a, const Real* b, const LeafZeros* zeros, int64_t terms, int64_t leaf,
                  bool is_last, Real* low, Real* high) {
    V sums[kRows][kTileVectors];
    const auto waiting = [=](int64_t level) {
      return level < kLowLevels ? low + level * kSize : high + (level - kLowLevels) * kSize;
    };
    const auto add = [&](int64_t level) {
      const Real* const from = waiting(level);
      for (int i = 0; i < kRows; ++i)
        for (int v = 0; v < kTileVectors; ++v)
          sums[i][v] = load(from + i * kCols + v * kLanes<Real>) + sums[i][v];
    };
    const auto write = [&](Real* to) {
      for (int i = 0; i < kRows; ++i)
        for (int v = 0; v < kTileVectors; ++v) store(to + i * kCols + v * kLanes<Real>, sums[i][v]);
    };
    for (; terms > 0; terms -= kProductLeaf, ++leaf) {
      // -0 + x is x, so the first term is the first product.
      for (int i = 0; i < kRows; ++i)
        for (int v = 0; v < kTileVectors; ++v) sums[i][v] = all_of(Real(-0.0));
      const int64_t count = terms < kProductLeaf ? terms : kProductLeaf;
      const Zeros present = zeros == nullptr ? kNoZero : zeros->of_all;
      if (present == kNoZero) {
        for (int64_t p = 0; p < count; ++p) add_term<false>(a + p * kRows, b + p * kCols, sums);
      } else if (present == kSomeZeros) {
        for (int64_t p = 0; p < count; ++p) {
          if (zeros->of_terms[p] == kNoZero)
            add_term<false>(a + p * kRows, b + p * kCols, sums);
          else if (zeros->of_terms[p] == kSomeZeros)
            add_term<true>(a + p * kRows, b + p * kCols, sums);
        }
      }
      if (zeros != nullptr) ++zeros;
      a += kProductLeaf * kRows;
      b += kProductLeaf * kCols;
      int64_t level = 0;
      for (; ((leaf >> level) & 1) != 0; ++level) add(level);
      if (terms > kProductLeaf || !is_last) {
        write(waiting(level));
        continue;
      }
      for (++level; (leaf + 1) >> level != 0; ++level)
        if ((((leaf + 1) >> level) & 1) != 0) add(level);
      write(low);
    }
  }

 private:
  template <bool kSkipsZeros>
  static BRIDGE_INLINE void add_term(const Real* a, const Real* b, V (&sums)[kRows][kTileVectors]) {
    V right[kTileVectors];
    BRIDGE_UNROLL
    for (int v = 0; v < kTileVectors; ++v) {
      __builtin_prefetch(b + 16 * kCols + v * kLanes<Real>);
      right[v] = load(b + v * kLanes<Real>);
    }
    BRIDGE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (kSkipsZeros && a[i] == 0) continue;
      const V left = all_of(a[i]);
      BRIDGE_UNROLL
      for (int v = 0; v < kTileVectors; ++v) sums[i][v] = fma(left, right[v], sums[i][v]);
    }
  }
};

template <class Real>
using Sum = void (*)(const Real*, const Real*, const LeafZeros*, int64_t, int64_t, bool, Real*,
                     Real*);

template <class Real, int... kRows>
constexpr Sum<Real> sum_of(int64_t rows, std::integer_sequence<int, kRows...>) {
  constexpr Sum<Real> sums[] = {Tile<Real, kRows + 1>::sum...};
  return sums[rows - 1];
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_PRODUCTS_TILE_SUM_H_
