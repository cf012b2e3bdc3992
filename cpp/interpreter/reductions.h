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

// The pattern of an element as an integer.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 2, uint16_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

// The largest of some numbers, in the order of order.h; -infinity's of none. Their patterns are
// compared as integers: where any is positive the largest signed one is that of the largest number,
// else the smallest; a NaN is a larger one than infinity's, and, with a sign, unsigned.
template <class Real, class T>
typename math::Format<Real>::SignedBits largest_order(const T* x, int64_t count) {
  using Bits = BitsOf<T>;
  using SignedBits = std::make_signed_t<Bits>;
  const Bits infinity = math::bit_cast<Bits>(math::round_to<T>(Real(__builtin_inf())));
  const Bits lowest = math::bit_cast<Bits>(math::round_to<T>(Real(-__builtin_inf())));
  SignedBits largest = static_cast<SignedBits>(lowest), smallest = largest;
  Bits most = lowest;
  for (int64_t i = 0; i < count; ++i) {
    const Bits bits = math::bit_cast<Bits>(x[i]);
    const auto ordered = static_cast<SignedBits>(bits);
    largest = ordered > largest ? ordered : largest;
    smallest = ordered < smallest ? ordered : smallest;
    most = bits > most ? bits : most;
  }
  if (most > lowest || largest > static_cast<SignedBits>(infinity))
    return order_of(Real(__builtin_nan("")));
  const Bits bits = static_cast<Bits>(largest >= 0 ? largest : smallest);
  return order_of(to_real<Real>(math::bit_cast<T>(bits)));
}

// Copies a chunk with -infinity in the place of what is not less than the largest number of its
// row, and says how much that is: what equals it, or all where it is NaN.
template <class Real, class T>
int64_t set_apart(const T* x, int64_t count, Real largest, T* less) {
  using Bits = BitsOf<T>;
  constexpr Bits sign = static_cast<Bits>(Bits(1) << (8 * sizeof(Bits) - 1));
  const Bits lowest = math::bit_cast<Bits>(math::round_to<T>(Real(-__builtin_inf())));
  const Bits all = static_cast<Bits>(~Bits(0)), size = static_cast<Bits>(~sign);
  const Bits compared = largest == largest ? (largest == 0 ? size : all) : Bits(0);
  const Bits equal = math::bit_cast<Bits>(math::round_to<T>(largest)) & compared;
  Bits found = 0;  // a chunk has fewer elements than any of these types counts
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const Bits bits = math::bit_cast<Bits>(x[i]);
    const bool is_equal = (bits & compared) == equal;
    less[i] = math::bit_cast<T>(is_equal ? lowest : bits);
    found += is_equal ? 1 : 0;
  }
  return static_cast<int64_t>(found);
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
  return place_of(number_of<Real>(largest_order<Real>(x, cols)), x, cols);
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

// Columns from the first on to the last.
struct ColumnRange {
  int64_t first, last;

  bool has(int64_t col) const { return first <= col && col <= last; }
};

// A reduction of a part of a row's columns.
template <class Real>
struct PartReduction {
  Real node;  // of the sum
  typename math::Format<Real>::SignedBits largest;
  ColumnRange range;
  int64_t place;
};

// A row's reduction so far, where the row comes in several pieces.
template <class Real>
struct Reduction {
  ChunkTree<Real> tree;
  typename math::Format<Real>::SignedBits largest;
  ColumnRange range;  // where the pieces begin that have the largest
  int64_t place;

  void begin() {
    tree.begin();
    largest = lowest_order<Real>();
    range = {0, 0};
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

  // A chunk with so many terms that are 1, and others that are 0.
  void add_count(int64_t ones) { tree.add(static_cast<Real>(ones)); }

  // The only term of the row that is not -0.0: whichever chunk it is in, the sum is the same.
  void add_alone(int64_t place, Real term) {
    alignas(64) Real terms[kStep];
    fill(terms, kStep, Real(-0.0));
    terms[place % kStep] = term;
    tree.add(sum_of_steps(terms, kStep));
  }

  using Order = typename math::Format<Real>::SignedBits;
  // Of a piece, or of a part.
  void take_order(Order order, ColumnRange from) {
    if (order > largest) range.first = from.first;
    if (order >= largest) largest = order, range.last = from.last;
  }
  template <class T>
  void take_largest(const T* x, int64_t col, int64_t count) {
    take_order(largest_order<Real>(x, count), {col, col});
  }

  // The column of the first of the largest, as numbers compare; of the first NaN.
  void take_place(const Real* x, int64_t col, int64_t count) {
    const Real before = number_of<Real>(largest);
    const Real here = number_of<Real>(largest_order<Real>(x, count));
    if (before != before || here <= before) return;
    largest = order_of(here);
    place = col + place_of(here, x, count);
  }

  // What this is of a part of a row, all of which has been taken.
  PartReduction<Real> part() { return {tree.end(), largest, range, place}; }
  // The parts of a row in their order, each of as many chunks, a power of two, but the last, which
  // may have fewer: then their sums are nodes of one level.
  void take_part(int32_t operation, const PartReduction<Real>& part) {
    if (operation == interpreter::kSum) return tree.add(part.node);
    if (operation == interpreter::kMax) return take_order(part.largest, part.range);
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
