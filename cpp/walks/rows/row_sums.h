// The tree of row_sum_tree.h, for the files that are compiled once for each instruction set:
// include it there only.
#ifndef BRIDGE_WALKS_ROWS_ROW_SUMS_H_
#define BRIDGE_WALKS_ROWS_ROW_SUMS_H_

#include "cpu/tile.h"
#include "math/softmax.h"
#include "walks/rows/row_sum_tree.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// kCount terms or sums of terms, each part of them side by side.
template <class Term, int64_t kCount>
struct Lanes {
  alignas(64) Term lane[kCount];
  inline __attribute__((always_inline)) Term at(int64_t i) const { return lane[i]; }
  inline __attribute__((always_inline)) void set(int64_t i, Term sum) { lane[i] = sum; }
};

template <class Real, int64_t kCount>
struct Lanes<math::SoftmaxParts<Real>, kCount> {
  alignas(64) Real coarse[kCount];
  alignas(64) Real fine[kCount];
  inline __attribute__((always_inline)) math::SoftmaxParts<Real> at(int64_t i) const {
    return {coarse[i], fine[i]};
  }
  inline __attribute__((always_inline)) void set(int64_t i, const math::SoftmaxParts<Real>& sum) {
    coarse[i] = sum.coarse;
    fine[i] = sum.fine;
  }
};

// Adds to the first `count` those `half` further on; nothing is read that this writes.
template <class Term, int64_t kCount>
inline __attribute__((always_inline)) void fold(Lanes<Term, kCount>& sum, int64_t count,
                                                int64_t half) {
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) sum.set(i, sum.at(i) + sum.at(i + half));
}

// Terms [begin, end) of the first quarter of a chunk, a whole number of steps, each with those of
// the same place in kStreams - 1 further quarters; with kTail the last of these is tail's.
template <int kStreams, bool kTail, class Terms, class Term, int64_t kCount>
inline __attribute__((always_inline)) void add_quarters(const Terms& terms, const Terms& tail,
                                                        int64_t begin, int64_t end,
                                                        Lanes<Term, kCount>& sum) {
  constexpr int64_t q = kSumQuarter;
  const int64_t count = end - begin;
  if (count % kStep != 0) __builtin_unreachable();
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const auto term = [&](int64_t quarter) __attribute__((always_inline)) {
      return kTail && quarter == kStreams - 1 ? tail.term(i) : terms.term(begin + i + quarter * q);
    };
    if constexpr (kStreams == 1)
      sum.set(begin + i, term(0));
    else if constexpr (kStreams == 2)
      sum.set(begin + i, term(0) + term(1));
    else if constexpr (kStreams == 3)
      sum.set(begin + i, (term(0) + term(1)) + term(2));
    else
      sum.set(begin + i, (term(0) + term(1)) + (term(2) + term(3)));
  }
}

template <bool kTail, class Terms, class Term, int64_t kCount>
void add_quarters(int64_t streams, const Terms& terms, const Terms& tail, int64_t begin,
                  int64_t end, Lanes<Term, kCount>& sum) {
  if (begin >= end) return;
  switch (streams) {
    case 1:
      return add_quarters<1, kTail>(terms, tail, begin, end, sum);
    case 2:
      return add_quarters<2, kTail>(terms, tail, begin, end, sum);
    case 3:
      return add_quarters<3, kTail>(terms, tail, begin, end, sum);
    case 4:
      return add_quarters<4, kTail>(terms, tail, begin, end, sum);
    default:
      return;
  }
}

// The last steps of a chunk, over the lanes of one step.
template <class Term, int64_t kCount>
inline __attribute__((always_inline)) Term fold_lanes(Lanes<Term, kCount>& lane) {
  static_assert(kStep == 32, "one step of lanes is folded");
  fold(lane, 16, 16);
  fold(lane, 8, 8);
  fold(lane, 4, 4);
  return (lane.at(0) + lane.at(2)) + (lane.at(1) + lane.at(3));
}

// The sum of a whole chunk whose quarters are added.
template <class Term>
inline __attribute__((always_inline)) Term fold_quarters(Lanes<Term, kSumQuarter>& sum) {
  constexpr int64_t q = kSumQuarter;
  fold(sum, q / 2, q / 2);
  fold(sum, q / 4, q / 4);
  fold(sum, q / 8, q / 8);
  return fold_lanes(sum);
}

// The sum of a chunk of `count` terms, 1 to kSumChunk: those of the whole steps, and of the columns
// behind them `tail`'s, a whole step of which all others are -0.0. Each is asked for once.
template <class Term, class Terms>
inline __attribute__((always_inline)) Term sum_chunk(const Terms& terms, const Terms& tail,
                                                     int64_t count) {
  constexpr int64_t q = kSumQuarter;
  Lanes<Term, q> sum;
  if (count == kSumChunk) {
    add_quarters<4, false>(terms, tail, 0, q, sum);
    return fold_quarters(sum);
  }
  const int64_t whole = count / kStep * kStep;
  int64_t width = count;
  if (whole == count && count <= q) {  // most rows are short, and this is little code
    add_quarters<1, false>(terms, tail, 0, count, sum);
  } else {
    const int64_t quarters = whole / q, rest = whole % q;
    add_quarters<false>(quarters + 1, terms, tail, 0, rest, sum);
    int64_t end = rest;
    if (whole != count) {
      add_quarters<true>(quarters + 1, terms, tail, rest, rest + kStep, sum);
      end += kStep;
    }
    add_quarters<false>(quarters, terms, tail, end, q, sum);
    width = quarters > 0 ? q : end;
  }
  for (int64_t half = q / 2; half >= kStep; half /= 2) {
    if (width <= half) continue;
    const int64_t more = width - half;
    if (more % kStep != 0) __builtin_unreachable();
    fold(sum, more, half);
    width = half;
  }
  return fold_lanes(sum);
}

// Chunks in their order, added in the aligned binary tree: finished nodes stand on a stack, one for
// each bit of their number, as in a binary counter.
template <class Term>
class ChunkTree {
 public:
  void add(Term chunk) {
    for (int64_t bits = chunks_++; bits & 1; bits >>= 1) chunk = node_[--depth_] + chunk;
    node_[depth_++] = chunk;
  }
  // The sum; -0.0 of nothing.
  Term end() {
    if (depth_ == 0) return Term(-0.0);
    Term sum = node_[--depth_];
    while (depth_ > 0) sum = node_[--depth_] + sum;
    return sum;
  }

 private:
  int64_t chunks_ = 0;
  int depth_ = 0;
  Term node_[64];
};

// The sum of a row of `count` terms. terms_from(col) gives those from a column on, which is a
// multiple of kSumChunk; tail() those behind the last whole step, as in sum_chunk.
template <class Term, class TermsFrom, class Tail>
inline __attribute__((always_inline)) Term sum_row(int64_t count, const TermsFrom& terms_from,
                                                   const Tail& tail) {
  if (count <= 0) return Term(-0.0);
  if (count <= kSumChunk) return sum_chunk<Term>(terms_from(0), tail(), count);
  ChunkTree<Term> tree;
  for (int64_t col = 0; col < count; col += kSumChunk)
    tree.add(sum_chunk<Term>(terms_from(col), tail(), smaller(kSumChunk, count - col)));
  return tree.end();
}

// The sums of kSumTileRows short rows side by side: term `col` of row `row` stands at
// col * kSumTileRows + row, and the sum at `row`. At most kStep terms in a row.
constexpr int64_t kSumTileRows = 32;

template <class Term, int64_t kCount>
inline void fold_tile(Lanes<Term, kCount>& term, int64_t cols) {
  for (int64_t half = kStep / 2, width = cols; half > 0; half /= 2) {
    fold(term, (width - half) * kSumTileRows, half * kSumTileRows);
    width = smaller(width, half);
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_WALKS_ROWS_ROW_SUMS_H_
