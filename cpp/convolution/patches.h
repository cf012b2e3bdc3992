// Panels of views: lanes side by side, term after term, widened to the arithmetic type, with +0 for
// elements outside of the array. Include this only in files that are compiled once for each
// instruction set.
#ifndef BRIDGE_CONVOLUTION_PATCHES_H_
#define BRIDGE_CONVOLUTION_PATCHES_H_

#include "convolution/views.h"
#include "products/packing.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using convolution::Axis;
using convolution::kAxisDims;
using convolution::kSpace;
using convolution::Places;
using convolution::View;

constexpr int kLast = kAxisDims - 1;
constexpr int64_t kMostPanelTerms = 1024, kMostPanelLanes = 64;

// A number of an axis, and its elements from the axis' first.
class Cursor {
 public:
  Cursor(const Axis& axis, int64_t number) : axis_(axis) {
    for (int d = kLast; d > 0; --d) {
      if (number < axis.size[d]) {
        at[d] = number, number = 0;
        continue;
      }
      at[d] = number % axis.size[d];
      number /= axis.size[d];
    }
    at[0] = number;
    measure();
  }
  // Returns how many numbers are in the run of the last dimension from here on.
  int64_t rest() const { return axis_.size[kLast] - at[kLast]; }
  // Goes on, at most to the end of the run.
  void advance(int64_t count) {
    at[kLast] += count;
    offset += count * axis_.stride[kLast];
    if (at[kLast] < axis_.size[kLast]) return;
    int d = kLast;
    for (; d > 0 && at[d] >= axis_.size[d]; --d) {
      at[d] = 0;
      ++at[d - 1];
    }
    measure();
  }

  int64_t at[kAxisDims], offset = 0;

 private:
  void measure() {
    offset = 0;
    for (int d = 0; d < kAxisDims; ++d) offset += at[d] * axis_.stride[d];
  }
  const Axis& axis_;
};

// The numbers of a run of places that are inside of the array.
struct Inside {
  int64_t first, end;
};

inline Inside inside_of(const View& view, const Cursor& lanes, const Cursor& terms, int64_t run) {
  const Cursor& place = view.places == Places::lanes ? lanes : terms;
  const Cursor& position = view.places == Places::lanes ? terms : lanes;
  int64_t coordinate = 0;
  for (int d = 0; d < kSpace; ++d) {
    coordinate =
        view.start[d] + place.at[d + 1] * view.place_step[d] + position.at[d] * view.window_step[d];
    const bool is_inside = coordinate >= 0 && coordinate < view.size[d];
    if (d < kSpace - 1 && !is_inside) return {0, 0};
  }
  const int64_t step = view.place_step[kSpace - 1], size = view.size[kSpace - 1];
  int64_t first = coordinate < 0 ? (-coordinate + step - 1) / step : 0;
  int64_t end = coordinate < size ? (size - coordinate + step - 1) / step : 0;
  if (end > run) end = run;
  if (first > end) first = end;
  return {first, end};
}

// A block of a panel: `to` is its first lane in its first term.
template <class Real>
void clear_block(int64_t lanes, int64_t terms, int64_t width, Real* to) {
  for (int64_t p = 0; p < terms; ++p)
    for (int64_t i = 0; i < lanes; ++i) to[p * width + i] = 0;
}

// `is_whole`: it has all lanes of the panel.
template <int kWidth, class T, class Real>
void pack_block(const T* from, const Source& source, bool is_whole, int64_t width, Real* to) {
  if (is_whole) {
    Source all = source;
    all.data = from;
    return pack_as<kWidth, T>(all, width, to);
  }
  if (source.lane_stride == 1) {
    for (int64_t p = 0; p < source.terms; ++p, from += source.term_stride, to += width)
      for (int64_t i = 0; i < source.lanes; ++i) to[i] = to_real<Real>(from[i]);
    return;
  }
  for (int64_t i = 0; i < source.lanes; ++i)
    for (int64_t p = 0; p < source.terms; ++p)
      to[p * width + i] = to_real<Real>(from[i * source.lane_stride + p * source.term_stride]);
}

alignas(64) constexpr char kZeros[kMostPanelTerms * sizeof(double)] = {};

// Lanes anywhere, or null for zeros, with adjacent terms.
template <class T, class Real>
void pack_pointed(const T* const* lane, int64_t lanes, int64_t terms, int64_t width, Real* to) {
  constexpr int kCount = kLanes<Real>;
  const int64_t whole = terms / kCount * kCount;
  const auto square = [&](int64_t p, int64_t first) {
    const int64_t rest = lanes - first;
    Vector<Real> rows[kCount];
    BRIDGE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const T* const from = lane[i < rest ? first + i : 0] + p;
      Real wide[kCount];
      for (int j = 0; j < kCount; ++j) wide[j] = to_real<Real>(from[j]);
      rows[i] = load(wide);
    }
    transpose<Real>(rows);
    BRIDGE_UNROLL
    for (int i = 0; i < kCount; ++i) store(to + (p + i) * width + first, rows[i]);
  };
  // A square may write past the last lane, into lanes that are written later.
  for (int64_t p = 0; p < whole; p += kCount)
    for (int64_t first = (width - 1) / kCount * kCount; first >= 0; first -= kCount)
      square(p, first);
  for (int64_t i = 0; i < lanes; ++i)
    for (int64_t p = whole; p < terms; ++p) to[p * width + i] = to_real<Real>(lane[i][p]);
  for (int64_t i = lanes; i < width; ++i)
    for (int64_t p = whole; p < terms; ++p) to[p * width + i] = 0;
}

// The panel of `lanes` lanes from `lane` on and `terms` terms from `term` on.
template <int kWidth, class T, class Real>
class PanelOfView {
 public:
  PanelOfView(const View& view, int64_t lane, int64_t lanes, int64_t width, Real* to)
      : view_(view),
        from_(reinterpret_cast<const T*>(view.data) + view.offset),
        lane_(lane),
        lanes_(lanes),
        width_(width),
        to_(to) {}

  void pack(int64_t term, int64_t terms) {
    // A line of lanes has the same place in the array for each run of terms.
    const bool has_pointers = view_.terms.stride[kLast] == 1 && view_.places != Places::terms &&
                              view_.lanes.stride[kLast] != 1;
    Cursor at(view_.terms, term);
    for (int64_t p = 0; p < terms;) {
      const int64_t run = smaller(terms - p, at.rest());
      Real* const to = to_ + p * width_;
      if (has_pointers)
        pack_pointers(at, run, to);
      else
        pack_runs(at, run, to);
      at.advance(run);
      p += run;
    }
    if (!has_pointers && lanes_ < width_) clear_block(width_ - lanes_, terms, width_, to_ + lanes_);
  }

 private:
  void pack_pointers(const Cursor& term, int64_t terms, Real* to) {
    const T* pointers[kMostPanelLanes];
    Cursor at(view_.lanes, lane_);
    for (int64_t i = 0; i < lanes_;) {
      const int64_t run = smaller(lanes_ - i, at.rest());
      const Inside inside =
          view_.places == Places::none ? Inside{0, run} : inside_of(view_, at, term, run);
      const T* const from = from_ + at.offset + term.offset;
      const int64_t step = view_.lanes.stride[kLast];
      for (int64_t j = 0; j < run; ++j)
        pointers[i + j] = j >= inside.first && j < inside.end ? from + j * step
                                                              : reinterpret_cast<const T*>(kZeros);
      at.advance(run);
      i += run;
    }
    pack_pointed(pointers, lanes_, terms, width_, to);
  }

  void pack_runs(const Cursor& term, int64_t terms, Real* to) {
    Cursor at(view_.lanes, lane_);
    for (int64_t i = 0; i < lanes_;) {
      const int64_t run = smaller(lanes_ - i, at.rest());
      pack_run(at, run, term, terms, run == lanes_, to + i);
      at.advance(run);
      i += run;
    }
  }

  void pack_run(const Cursor& lane, int64_t lanes, const Cursor& term, int64_t terms, bool is_whole,
                Real* to) {
    const T* const from = from_ + lane.offset + term.offset;
    Source source{nullptr, view_.lanes.stride[kLast], view_.terms.stride[kLast], lanes, terms};
    if (view_.places == Places::none) return pack_block<kWidth>(from, source, is_whole, width_, to);
    const bool are_lanes = view_.places == Places::lanes;
    const auto [first, end] = inside_of(view_, lane, term, are_lanes ? lanes : terms);
    if (are_lanes) {
      clear_block(first, terms, width_, to);
      clear_block(lanes - end, terms, width_, to + end);
      source.lanes = end - first;
      return pack_block<kWidth>(from + first * source.lane_stride, source,
                                is_whole && source.lanes == lanes, width_, to + first);
    }
    clear_block(lanes, first, width_, to);
    source.terms = end - first;
    pack_block<kWidth>(from + first * source.term_stride, source, is_whole, width_,
                       to + first * width_);
    // Squares write a vector past the block, so the zeros behind it come last.
    clear_block(lanes, terms - end, width_, to + end * width_);
  }

  const View& view_;
  const T* from_;
  int64_t lane_, lanes_, width_;
  Real* to_;
};

// Writes `terms` groups of `width` numbers, and perhaps a vector behind them.
template <int kWidth, class Real>
void pack_view(const View& view, int64_t lane, int64_t lanes, int64_t term, int64_t terms,
               int64_t width, Real* to) {
  const auto pack_from = [&](auto element) {
    PanelOfView<kWidth, decltype(element), Real>(view, lane, lanes, width, to).pack(term, terms);
  };
  switch (view.dtype) {
    case BRIDGE_FLOAT16:
      return pack_from(math::float16{});
    case BRIDGE_BFLOAT16:
      return pack_from(math::bfloat16{});
    case BRIDGE_FLOAT32:
      return pack_from(float{});
    default:
      if constexpr (sizeof(Real) == sizeof(double)) pack_from(double{});
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_CONVOLUTION_PATCHES_H_
