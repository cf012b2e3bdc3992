// Panels of operands: lanes side by side, term after term, widened to the arithmetic type. Include
// this only in files that are compiled once for each instruction set.
#ifndef BRIDGE_PRODUCTS_PACKING_H_
#define BRIDGE_PRODUCTS_PACKING_H_

#include "cpu/tile.h"
#include "cpu/vectors.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// The part of an operand that a panel holds. Strides count elements; lanes are rows of a or columns
// of b.
struct Source {
  const void* data;
  int64_t lane_stride, term_stride;
  int64_t lanes, terms;
};

// Lanes that are adjacent in memory.
template <int kWidth, class T, class Real>
void pack_adjacent(const T* from, const Source& source, int64_t width, Real* to) {
  if (source.lanes == kWidth && width == kWidth) {
    for (int64_t p = 0; p < source.terms; ++p, from += source.term_stride, to += kWidth) {
      BRIDGE_INDEPENDENT
      for (int i = 0; i < kWidth; ++i) to[i] = to_real<Real>(from[i]);
    }
    return;
  }
  for (int64_t p = 0; p < source.terms; ++p, from += source.term_stride, to += width) {
    for (int64_t i = 0; i < source.lanes; ++i) to[i] = to_real<Real>(from[i]);
    for (int64_t i = source.lanes; i < width; ++i) to[i] = 0;
  }
}

// Lanes anywhere in memory.
template <class T, class Real>
void pack_apart(const T* from, const Source& source, int64_t width, Real* to) {
  for (int64_t i = 0; i < source.lanes; ++i) {
    const T* const lane = from + i * source.lane_stride;
    for (int64_t p = 0; p < source.terms; ++p)
      to[p * width + i] = to_real<Real>(lane[p * source.term_stride]);
  }
  for (int64_t i = source.lanes; i < width; ++i)
    for (int64_t p = 0; p < source.terms; ++p) to[p * width + i] = 0;
}

// Terms that are adjacent in memory, in squares of vectors. The last square of a term may write
// past its last lane: into lanes of the next term, which are written later, or into the room behind
// the panel.
template <class T, class Real>
void pack_squares(const T* from, const Source& source, int64_t width, Real* to) {
  constexpr int kCount = kLanes<Real>;
  constexpr int kAhead = 512 / static_cast<int>(sizeof(T));  // prefetched elements of a lane
  const int64_t whole = source.terms / kCount * kCount;
  const auto square = [&](int64_t p, int64_t first) {
    const int64_t lanes = source.lanes - first;
    Vector<Real> rows[kCount];
    BRIDGE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const T* const lane = from + (i < lanes ? first + i : 0) * source.lane_stride + p;
      __builtin_prefetch(lane + kAhead);
      Real wide[kCount];
      for (int j = 0; j < kCount; ++j) wide[j] = to_real<Real>(lane[j]);
      rows[i] = load(wide);
    }
    transpose<Real>(rows);
    BRIDGE_UNROLL
    for (int i = 0; i < kCount; ++i) store(to + (p + i) * width + first, rows[i]);
  };
  if (width % kCount == 0) {  // then no square writes past, and long runs of a lane are faster
    for (int64_t first = 0; first < width; first += kCount)
      for (int64_t p = 0; p < whole; p += kCount) square(p, first);
  } else {
    for (int64_t p = 0; p < whole; p += kCount)
      for (int64_t first = (width - 1) / kCount * kCount; first >= 0; first -= kCount)
        square(p, first);
  }
  if (whole == source.terms) return;
  pack_apart(from + whole, {nullptr, source.lane_stride, 1, source.lanes, source.terms - whole},
             width, to + whole * width);
}

// Writes `terms` groups of `width` numbers, and perhaps a vector behind them. Lanes that the source
// lacks have any numbers.
template <int kWidth, class T, class Real>
void pack_as(const Source& source, int64_t width, Real* to) {
  const T* const from = static_cast<const T*>(source.data);
  if (source.lane_stride == 1) return pack_adjacent<kWidth>(from, source, width, to);
  if (source.term_stride == 1) return pack_squares(from, source, width, to);
  pack_apart(from, source, width, to);
}

template <int kWidth, class Real>
void pack(int32_t dtype, const Source& source, int64_t width, Real* to) {
  switch (dtype) {
    case BRIDGE_FLOAT16:
      return pack_as<kWidth, math::float16>(source, width, to);
    case BRIDGE_BFLOAT16:
      return pack_as<kWidth, math::bfloat16>(source, width, to);
    case BRIDGE_FLOAT32:
      return pack_as<kWidth, float>(source, width, to);
    default:
      if constexpr (sizeof(Real) == sizeof(double)) pack_as<kWidth, double>(source, width, to);
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_PRODUCTS_PACKING_H_
