// The tree of row_sum_tree.h. Include this only in files that are compiled once for each
// instruction set.
#ifndef BRIDGE_DRIVERS_ROWS_ROW_SUMS_H_
#define BRIDGE_DRIVERS_ROWS_ROW_SUMS_H_

#include <type_traits>

#include "cpu/tile.h"
#include "drivers/rows/row_sum_tree.h"
#include "math/softmax.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// kCount terms or sums of terms; each part of the terms is contiguous.
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

// Adds to each of the first `count` terms the term `half` further on. `count` is at most `half`, so
// that nothing is read that this writes.
template <class Term, int64_t kCount>
inline __attribute__((always_inline)) void fold(Lanes<Term, kCount>& sum, int64_t count,
                                                int64_t half) {
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) sum.set(i, sum.at(i) + sum.at(i + half));
}

// Computes the terms [begin, end) of the first quarter of a chunk, a whole number of steps, plus
// the terms at the same places in kStreams - 1 further quarters. With kTail, the last of these
// comes from `tail`.
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

// The sum of the parts kFirst, kFirst + kStride, kFirst + 2 kStride, ... below kParts, in the order
// of the tree: parts that are furthest apart are added first.
template <int kParts, int kFirst, int kStride, class At>
inline __attribute__((always_inline)) auto folded(const At& at) {
  if constexpr (kFirst + kStride >= kParts)
    return at(kFirst);
  else
    return folded<kParts, kFirst, 2 * kStride>(at) +
           folded<kParts, kFirst + kStride, 2 * kStride>(at);
}

// The last steps of a chunk, over the lanes of one step.
template <class Term, int64_t kCount>
inline __attribute__((always_inline)) Term fold_lanes(Lanes<Term, kCount>& lane) {
  static_assert(kStep == 32, "one step of lanes is folded");
  if constexpr (std::is_floating_point_v<Term>) {
    // This uses registers of a size that every processor has; compilers do not find this form.
    constexpr int kWidth = 16 / sizeof(Term);
    typedef Term Part __attribute__((vector_size(16), aligned(alignof(Term)), may_alias));
    const Part* const parts = reinterpret_cast<const Part*>(lane.lane);
    const auto at = [=](int part) __attribute__((always_inline)) { return parts[part]; };
    const Part sum = folded<kStep / kWidth, 0, 1>(at);
    if constexpr (kWidth == 2)
      return sum[0] + sum[1];
    else
      return (sum[0] + sum[2]) + (sum[1] + sum[3]);
  } else {
    fold(lane, 16, 16);
    fold(lane, 8, 8);
    fold(lane, 4, 4);
    return (lane.at(0) + lane.at(2)) + (lane.at(1) + lane.at(3));
  }
}

// The sum of kSteps steps of terms, at most a quarter of a chunk; with kTail, the last step is
// `tail`'s. It is computed in registers, for terms that take no computation.
template <int kSteps, bool kTail, class Term, class Terms>
inline __attribute__((always_inline)) Term sum_steps(const Terms& terms, const Terms& tail) {
  static_assert(kSteps * kStep <= kSumQuarter);
  Lanes<Term, kStep> sum;
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < kStep; ++i) {
    const auto at = [&](int64_t step) __attribute__((always_inline)) {
      return kTail && step == kSteps - 1 ? tail.term(i) : terms.term(i + step * kStep);
    };
    sum.set(i, folded<kSteps, 0, 1>(at));
  }
  return fold_lanes(sum);
}

template <bool kTail, class Term, class Terms>
inline __attribute__((always_inline)) Term sum_steps(int64_t steps, const Terms& terms,
                                                     const Terms& tail) {
  static_assert(kSumQuarter == 8 * kStep, "a case for each number of steps");
  switch (steps) {
    case 1:
      return sum_steps<1, kTail, Term>(terms, tail);
    case 2:
      return sum_steps<2, kTail, Term>(terms, tail);
    case 3:
      return sum_steps<3, kTail, Term>(terms, tail);
    case 4:
      return sum_steps<4, kTail, Term>(terms, tail);
    case 5:
      return sum_steps<5, kTail, Term>(terms, tail);
    case 6:
      return sum_steps<6, kTail, Term>(terms, tail);
    case 7:
      return sum_steps<7, kTail, Term>(terms, tail);
    default:
      return sum_steps<8, kTail, Term>(terms, tail);
  }
}

// The sum of a whole chunk whose quarters have been added.
template <class Term>
inline __attribute__((always_inline)) Term fold_quarters(const Lanes<Term, kSumQuarter>& sum) {
  struct {
    const Lanes<Term, kSumQuarter>& sum;
    inline __attribute__((always_inline)) Term term(int64_t i) const { return sum.at(i); }
  } const terms{sum};
  return sum_steps<kSumQuarter / kStep, false, Term>(terms, terms);
}

// The sum of a chunk of `count` terms, 1 to kSumChunk. `terms` gives the terms of whole steps.
// `tail` gives the rest as a whole step, in which all further terms are -0.0. Each term is
// requested once.
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
  if (width == q) return fold_quarters(sum);
  for (int64_t half = q / 2; half >= kStep; half /= 2) {
    if (width <= half) continue;
    const int64_t more = width - half;
    if (more % kStep != 0) __builtin_unreachable();
    fold(sum, more, half);
    width = half;
  }
  return fold_lanes(sum);
}

// Adds chunks in order, in the aligned binary tree. Finished nodes are on a stack, one for each bit
// that is set in the number of chunks, as in a binary counter.
template <class Term>
class ChunkTree {
 public:
  void begin() { chunks_ = depth_ = 0; }
  void add(Term chunk) {
    for (int64_t bits = chunks_++; bits & 1; bits >>= 1) chunk = node_[--depth_] + chunk;
    node_[depth_++] = chunk;
  }
  // Returns the sum; -0.0 without chunks.
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

// The sum of a row of `count` terms. terms_from(col) gives the terms from column `col` on, a
// multiple of kSumChunk; tail() gives the terms behind the last whole step, as in sum_chunk.
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

// Sums kSumTileRows short rows side by side, of at most kStep terms each. Term `col` of row `row`
// is at col * kSumTileRows + row, and its sum at `row`.
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

#endif  // BRIDGE_DRIVERS_ROWS_ROW_SUMS_H_
