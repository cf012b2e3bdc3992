// Reductions along the rows of a tile. Include it only in files compiled once for each instruction
// set.
#ifndef BRIDGE_TILES_REDUCTIONS_H_
#define BRIDGE_TILES_REDUCTIONS_H_

#include "cpu/tile.h"
#include "drivers/rows/row_sums.h"
#include "program/order.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class Real>
struct Terms {
  const Real* from;
  inline __attribute__((always_inline)) Real term(int64_t i) const { return from[i]; }
};

// Returns the sum of `count` terms, 1 to kSumChunk, in the order of row_sum_tree.h. `tail` holds
// the terms behind the last whole step, padded with -0.0 to a step.
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

// The same for whole steps, without a tail.
template <class Real>
Real sum_of_steps(const Real* terms, int64_t count) {
  return sum_terms(terms, terms, count);
}

// Writes `count` terms, fewer than kStep, and -0.0 up to a whole step. A whole step of `terms` is
// readable.
template <class Real>
inline void pad_step(const Real* terms, int64_t count, Real* to) {
  BRIDGE_INDEPENDENT
  for (int32_t i = 0; i < kStep; ++i)
    to[i] = i < static_cast<int32_t>(count) ? terms[i] : Real(-0.0);
}

using interpreter::lowest_order;
using interpreter::number_of;
using interpreter::order_of;

// Returns the larger of `largest` and the order of `x`.
template <class Real>
inline __attribute__((always_inline)) typename math::Format<Real>::SignedBits larger_order(
    typename math::Format<Real>::SignedBits largest, Real x) {
  const auto order = order_of(x);
  return order > largest ? order : largest;
}

// The unsigned integer type with the size of T.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 2, uint16_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

// Returns the largest order (order.h) of `count` numbers; the order of -infinity if there are none.
// The loop compares bit patterns as integers. If any number is positive, the largest number has the
// largest signed pattern; otherwise it has the smallest signed pattern. A NaN without a sign has a
// larger signed pattern than infinity, and a NaN with a sign has a larger unsigned pattern than
// -infinity.
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

// Copies a chunk to `less` with -infinity in place of each element equal to `largest`, the largest
// number of the row. Returns the number of such elements. +0 equals -0; if `largest` is NaN, every
// element counts as equal.
template <class Real, class T>
int64_t set_apart(const T* x, int64_t count, Real largest, T* less) {
  using Bits = BitsOf<T>;
  constexpr Bits sign = static_cast<Bits>(Bits(1) << (8 * sizeof(Bits) - 1));
  const Bits lowest = math::bit_cast<Bits>(math::round_to<T>(Real(-__builtin_inf())));
  const Bits all = static_cast<Bits>(~Bits(0)), size = static_cast<Bits>(~sign);
  const Bits compared = largest == largest ? (largest == 0 ? size : all) : Bits(0);
  const Bits equal = math::bit_cast<Bits>(math::round_to<T>(largest)) & compared;
  Bits found = 0;  // no overflow: a chunk has 1,024 elements
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const Bits bits = math::bit_cast<Bits>(x[i]);
    const bool is_equal = (bits & compared) == equal;
    less[i] = math::bit_cast<T>(is_equal ? lowest : bits);
    found += is_equal ? 1 : 0;
  }
  return static_cast<int64_t>(found);
}

// Returns the index of the first of `count` numbers that equals `value`, or of the first NaN if
// `value` is NaN; 0 if there is none.
template <class Real>
int64_t place_of(Real value, const Real* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] == value || (value != value && x[i] != x[i])) return i;
  }
  return 0;
}

// Returns the column of the first largest number of a row, where -0 equals +0.
template <class Real>
int64_t place_of_largest(const Real* x, int64_t cols) {
  return place_of(number_of<Real>(largest_order<Real>(x, cols)), x, cols);
}

// Writes the sum of each of `count` adjacent rows of at most kSumChunk columns. A whole step is
// readable behind the last row.
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

// Columns from `first` to `last`, both included.
struct ColumnRange {
  int64_t first, last;

  bool has(int64_t col) const { return first <= col && col <= last; }
};

// The result of a reduction over one part of a row's columns.
template <class Real>
struct PartReduction {
  Real node;  // of the sum's tree
  typename math::Format<Real>::SignedBits largest;
  ColumnRange range;
  int64_t place;
};

// The state of a reduction over a row that arrives in several pieces.
template <class Real>
struct Reduction {
  ChunkTree<Real> tree;
  typename math::Format<Real>::SignedBits largest;
  ColumnRange range;  // first columns of the first and the last piece with the largest number
  int64_t place;

  void begin() {
    tree.begin();
    largest = lowest_order<Real>();
    range = {0, 0};
    place = 0;
  }

  // Adds a whole chunk, or the rest of a row. Overwrites the numbers behind `count` in the last
  // step of `x`.
  void add_chunk(Real* x, int64_t count) {
    const int64_t whole = count / kStep * kStep;
    if (whole != count) pad_step(x + whole, count - whole, x + whole);
    tree.add(sum_of_steps(x, round_up(count)));
  }

  // Adds a chunk with its four quarters already added to each other.
  void add_quarters(Lanes<Real, kSumQuarter>& sum) { tree.add(fold_quarters(sum)); }

  // Adds a chunk in which `ones` terms are 1 and the others are 0.
  void add_count(int64_t ones) { tree.add(static_cast<Real>(ones)); }

  // Adds the only term of the row that is not -0.0. The sum does not depend on the term's chunk,
  // because x + -0.0 is x.
  void add_alone(int64_t place, Real term) {
    alignas(64) Real terms[kStep];
    fill(terms, kStep, Real(-0.0));
    terms[place % kStep] = term;
    tree.add(sum_of_steps(terms, kStep));
  }

  using Order = typename math::Format<Real>::SignedBits;
  // Takes the largest order of the pieces that begin at columns `from.first` to `from.last`.
  void take_order(Order order, ColumnRange from) {
    if (order > largest) range.first = from.first;
    if (order >= largest) largest = order, range.last = from.last;
  }
  template <class T>
  void take_largest(const T* x, int64_t col, int64_t count) {
    take_order(largest_order<Real>(x, count), {col, col});
  }

  // Takes the column of the first largest number of a piece, where -0 equals +0 and NaN is the
  // largest.
  void take_place(const Real* x, int64_t col, int64_t count) {
    const Real before = number_of<Real>(largest);
    const Real here = number_of<Real>(largest_order<Real>(x, count));
    if (before != before || here <= before) return;
    largest = order_of(here);
    place = col + place_of(here, x, count);
  }

  // Returns the result for a part of a row, once all its pieces are taken.
  PartReduction<Real> part() { return {tree.end(), largest, range, place}; }
  // Takes the next part of the row, in order. All parts but the last have the same number of
  // chunks, a power of two: the sums of parts are nodes of one level of the tree.
  void take_part(int32_t operation, const PartReduction<Real>& part) {
    if (operation == interpreter::kSum) return tree.add(part.node);
    if (operation == interpreter::kMax) return take_order(part.largest, part.range);
    const Real before = number_of<Real>(largest), here = number_of<Real>(part.largest);
    if (before != before || here <= before) return;
    largest = part.largest;
    place = part.place;
  }
};

// A reduction over pieces that are shorter than a chunk and divide it.
template <class Real>
struct PiecewiseReduction : Reduction<Real> {
  alignas(64) Real chunk[kSumChunk];

  // Adds `count` columns from `col` on of a row of `cols` columns.
  void add(const Real* x, int64_t col, int64_t count, int64_t cols) {
    const int64_t at = col % kSumChunk, end = at + count;
    copy(chunk + at, x, count);
    if (end == kSumChunk || col + count == cols) this->add_chunk(chunk, end);
  }
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TILES_REDUCTIONS_H_
