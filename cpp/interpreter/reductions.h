// Reductions along the rows of a tile, for the files that are compiled once for each instruction
// set: include it there only.
#ifndef BRIDGE_INTERPRETER_REDUCTIONS_H_
#define BRIDGE_INTERPRETER_REDUCTIONS_H_

#include "cpu/tile.h"
#include "interpreter/order.h"
#include "walks/rows/row_sums.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class Real>
struct Terms {
  const Real* from;
  inline __attribute__((always_inline)) Real term(int64_t i) const { return from[i]; }
};

// The sum of `count` terms, 1 to kSumChunk; of those behind the last whole step the tail has a
// step, padded with -0.0.
template <class Real>
inline __attribute__((always_inline)) Real sum_terms(const Real* terms, const Real* tail,
                                                     int64_t count) {
  constexpr int64_t q = kSumQuarter;
  const Terms<Real> from{terms}, last{tail};
  if (count == kSumChunk) {
    struct {
      const Real* from;
      inline __attribute__((always_inline)) Real term(int64_t i) const {
        return (from[i] + from[i + q]) + (from[i + 2 * q] + from[i + 3 * q]);
      }
    } const quarters{terms};
    return sum_steps<q / kStep, false, Real>(quarters, quarters);
  }
  if (count > q) return sum_chunk<Real>(from, last, count);
  const int64_t steps = count / kStep;
  return count % kStep == 0 ? sum_steps<false, Real>(steps, from, last)
                            : sum_steps<true, Real>(steps + 1, from, last);
}

// The same of whole steps.
template <class Real>
Real sum_of_steps(const Real* terms, int64_t count) {
  return sum_terms(terms, terms, count);
}

// Less than a step of terms, and -0.0 behind them; there is a step of numbers.
template <class Real>
inline void pad_step(const Real* terms, int64_t count, Real* to) {
  BRIDGE_INDEPENDENT
  for (int32_t i = 0; i < kStep; ++i)
    to[i] = i < static_cast<int32_t>(count) ? terms[i] : Real(-0.0);
}

using interpreter::lowest_order;
using interpreter::number_of;
using interpreter::order_of;

// The larger of an order and a number's.
template <class Real>
inline __attribute__((always_inline)) typename math::Format<Real>::SignedBits larger_order(
    typename math::Format<Real>::SignedBits largest, Real x) {
  const auto order = order_of(x);
  return order > largest ? order : largest;
}

// The largest of some numbers, in the order of order.h; -infinity's of none.
template <class Real>
typename math::Format<Real>::SignedBits largest_order(const Real* x, int64_t count) {
  using Order = typename math::Format<Real>::SignedBits;
  Order lane[kStep];
  for (int64_t i = 0; i < kStep; ++i) lane[i] = lowest_order<Real>();
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    for (int64_t j = 0; j < kStep; ++j) lane[j] = larger_order(lane[j], x[i + j]);
  }
  Order largest = lowest_order<Real>();
  for (; i < count; ++i) largest = larger_order(largest, x[i]);
  for (const Order order : lane) largest = order > largest ? order : largest;
  return largest;
}

// The place of the first of some numbers that compares equal to one of them; of the first NaN.
template <class Real>
int64_t place_of(Real value, const Real* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] == value || (value != value && x[i] != x[i])) return i;
  }
  return 0;
}

// The column of the first of a row's largest numbers, as they compare.
template <class Real>
int64_t place_of_largest(const Real* x, int64_t cols) {
  return place_of(number_of<Real>(largest_order(x, cols)), x, cols);
}

// The sums of rows of a chunk at most that stand side by side, with a step of numbers behind them.
template <class Real>
void sum_rows(const Real* x, int64_t count, int64_t cols, Real* to) {
  if (cols == 0) return fill(to, count, Real(-0.0));
  if (cols == 1) return copy(to, x, count);
  const int64_t whole = cols / kStep * kStep;
  alignas(64) Real tail[kStep];
  for (int64_t i = 0; i < count; ++i) {
    const Real* from = x + i * cols;
    if (whole != cols) pad_step(from + whole, cols - whole, tail);
    to[i] = sum_terms(from, tail, cols);
  }
}

// A reduction of a part of a row's columns.
template <class Real>
struct PartReduction {
  Real node;  // of the sum
  typename math::Format<Real>::SignedBits largest;
  int64_t place;
};

// A row's reduction so far, where the row comes in several pieces.
template <class Real>
struct Reduction {
  ChunkTree<Real> tree;
  typename math::Format<Real>::SignedBits largest;
  int64_t place;

  void begin() {
    tree.begin();
    largest = lowest_order<Real>();
    place = 0;
  }

  // A whole chunk, or what is left of a row: what is behind it in its last step is overwritten.
  void add_chunk(Real* x, int64_t count) {
    const int64_t whole = count / kStep * kStep;
    if (whole != count) pad_step(x + whole, count - whole, x + whole);
    tree.add(sum_of_steps(x, round_up(count)));
  }

  // One whose quarters are added.
  void add_quarters(Lanes<Real, kSumQuarter>& sum) { tree.add(fold_quarters(sum)); }

  // The only term of the row that is not -0.0: whichever chunk it is in, the sum is the same.
  void add_alone(int64_t place, Real term) {
    alignas(64) Real terms[kStep];
    fill(terms, kStep, Real(-0.0));
    terms[place % kStep] = term;
    tree.add(sum_of_steps(terms, kStep));
  }

  using Order = typename math::Format<Real>::SignedBits;
  void take_order(Order order) { largest = order > largest ? order : largest; }
  void take_largest(const Real* x, int64_t count) { take_order(largest_order(x, count)); }

  // The column of the first of the largest, as numbers compare; of the first NaN.
  void take_place(const Real* x, int64_t col, int64_t count) {
    const Real before = number_of<Real>(largest);
    const Real here = number_of<Real>(largest_order(x, count));
    if (before != before || here <= before) return;
    largest = order_of(here);
    place = col + place_of(here, x, count);
  }

  // What this is of a part of a row, all of which has been taken.
  PartReduction<Real> part() { return {tree.end(), largest, place}; }
  // The parts of a row in their order, each of as many chunks, a power of two, but the last, which
  // may have fewer: then their sums are nodes of one level.
  void take_part(int32_t operation, const PartReduction<Real>& part) {
    if (operation == interpreter::kSum) return tree.add(part.node);
    if (operation == interpreter::kMax) return take_order(part.largest);
    const Real before = number_of<Real>(largest), here = number_of<Real>(part.largest);
    if (before != before || here <= before) return;
    largest = part.largest;
    place = part.place;
  }
};

// One whose pieces are shorter than a chunk, which they divide.
template <class Real>
struct PiecewiseReduction : Reduction<Real> {
  alignas(64) Real chunk[kSumChunk];

  // The piece from column `col` on of a row of `cols` columns.
  void add(const Real* x, int64_t col, int64_t count, int64_t cols) {
    const int64_t at = col % kSumChunk, end = at + count;
    copy(chunk + at, x, count);
    if (end == kSumChunk || col + count == cols) this->add_chunk(chunk, end);
  }
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_INTERPRETER_REDUCTIONS_H_
