// Convolutions on CUDA as products of patches: a tile of products/product.cuh, whose operands are
// views. Each thread finds its elements of a step by their numbers.
#ifndef BRIDGE_CONVOLUTION_TILE_CUH_
#define BRIDGE_CONVOLUTION_TILE_CUH_

#include "convolution/views.h"
#include "cuda/division.h"
#include "products/product.cuh"

namespace bridge::convolution {

using products::kProductLeaf;
using products::kStep;
using products::kTileThreads;

// The elements between a group and the next.
struct GroupSteps {
  int64_t a, b, c, bias;
};

struct ConvolutionParams {
  products::TileParams tile;  // without the call
  Problem problem;            // of the first group
  GroupSteps steps;
};

// A number of an axis, with a digit for each of its dimensions. Int: int32_t if all numbers,
// offsets and coordinates of a view fit.
template <class Int>
struct Digits {
  Int at[kAxisDims];
};

template <class Int>
BRIDGE_DEVICE Digits<Int> digits_of(const Axis& axis, Int number) {
  Digits<Int> all;
#pragma unroll
  for (int d = kAxisDims - 1; d >= 0; --d) {
    const auto size = static_cast<Int>(axis.size[d]);
    all.at[d] = 0;
    if (size <= 1) continue;
    const auto rest = static_cast<Int>(simt::divide(number, size));
    all.at[d] = number - rest * size;
    number = rest;
  }
  return all;
}

// The place of a number of an axis, in elements from the first.
template <class Int>
BRIDGE_DEVICE Int offset_in(const Axis& axis, const Digits<Int>& digits) {
  Int offset = 0;
#pragma unroll
  for (int d = 0; d < kAxisDims; ++d) offset += digits.at[d] * static_cast<Int>(axis.stride[d]);
  return offset;
}
BRIDGE_DEVICE int64_t offset_in(const Axis& axis, int64_t number) {
  return offset_in(axis, digits_of(axis, number));
}

// A lane or a term: its elements from the view's first, and its part of each coordinate.
template <class Int>
struct Number {
  Int offset, coordinate[kSpace];
};

template <class Int>
BRIDGE_DEVICE Number<Int> number_of(const View& view, bool is_lane, const Digits<Int>& digits) {
  Number<Int> all{offset_in(is_lane ? view.lanes : view.terms, digits), {}};
  if (view.places == Places::none) return all;
  const bool is_place = (view.places == Places::lanes) == is_lane;
#pragma unroll
  for (int d = 0; d < kSpace; ++d) {
    const Int at = is_place ? digits.at[d + 1] : digits.at[d];
    all.coordinate[d] =
        is_place ? static_cast<Int>(view.start[d]) + at * static_cast<Int>(view.place_step[d])
                 : at * static_cast<Int>(view.window_step[d]);
  }
  return all;
}

// Returns true if an element is in the array: not a zero around it.
template <class Int>
BRIDGE_DEVICE bool is_in_array(const View& view, const Number<Int>& lane, const Number<Int>& term) {
  if (view.places == Places::none) return true;
  bool is_inside = true;
#pragma unroll
  for (int d = 0; d < kSpace; ++d) {
    const Int place = lane.coordinate[d] + term.coordinate[d];
    is_inside = is_inside && place >= 0 && place < static_cast<Int>(view.size[d]);
  }
  return is_inside;
}

// The part of a view in a tile. The threads read adjacent lanes if the array has them, else terms.
template <class Real, int kLanes>
class ViewPanel {
 public:
  static constexpr int kOwn = kLanes * kStep / kTileThreads;
  static constexpr int kWidth = kLanes + 16 / static_cast<int>(sizeof(Real));

  BRIDGE_DEVICE ViewPanel(const View& view, int64_t group_offset, int64_t first, int64_t lanes,
                          int64_t terms)
      : view_(view),
        group_offset_(view.offset + group_offset),
        terms_(terms),
        has_adjacent_lanes_(view.lanes.stride[kAxisDims - 1] == 1) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      is_lane_[r] = first + lane(r) < lanes;
      if (is_lane_[r]) lanes_[r] = number_of(view, true, digits_of(view.lanes, first + lane(r)));
    }
  }

  // Reads the step from term `first` on.
  BRIDGE_DEVICE void read(int64_t first) {
    Number<int64_t> number{};
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int64_t at = first + term(r);
      values_[r] = 0;
      if (!is_lane_[r] || at >= terms_) continue;
      if (r == 0 || has_adjacent_lanes_)
        number = number_of(view_, false, digits_of(view_.terms, at));
      const int64_t offset = group_offset_ + lanes_[r].offset + number.offset;
      if (is_in_array(view_, lanes_[r], number))
        values_[r] = products::load_element<Real>(view_.data + offset * element_bytes(view_.dtype),
                                                  view_.dtype);
    }
  }

  BRIDGE_DEVICE void write(Real* shared) const {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) shared[term(r) * kWidth + lane(r)] = values_[r];
  }

 private:
  BRIDGE_DEVICE int lane(int r) const {
    const int element = simt::thread_index() + r * kTileThreads;
    return has_adjacent_lanes_ ? element % kLanes : element / kStep;
  }
  BRIDGE_DEVICE int term(int r) const {
    const int element = simt::thread_index() + r * kTileThreads;
    return has_adjacent_lanes_ ? element / kLanes : element % kStep;
  }

  const View& view_;
  int64_t group_offset_, terms_;
  bool has_adjacent_lanes_;
  bool is_lane_[kOwn];
  Number<int64_t> lanes_[kOwn];
  Real values_[kOwn];
};

// The elements of a group's result.
template <class Real>
class Result {
 public:
  BRIDGE_DEVICE Result(const ConvolutionParams& params, int64_t group)
      : problem_(params.problem),
        c_(problem_.c + group * params.steps.c * element_bytes(problem_.c_dtype)),
        bias_(group * params.steps.bias) {}

  BRIDGE_DEVICE bool has_col(int64_t col) const { return col < problem_.col_count; }
  BRIDGE_DEVICE int64_t col_offset(int64_t col) const { return offset_in(problem_.cols, col); }

  // Adds the bias and writes an element, if there is such a row.
  BRIDGE_DEVICE void write(int64_t row, int64_t col, int64_t col_offset, Real sum) const {
    if (row >= problem_.row_count) return;
    if (problem_.bias != nullptr) {
      const int64_t number = problem_.has_row_bias ? row : col;
      const int64_t place = bias_ + number * problem_.bias_stride;
      sum = sum +
            products::load_element<Real>(problem_.bias + place * element_bytes(problem_.bias_dtype),
                                         problem_.bias_dtype);
    }
    const int64_t offset = offset_in(problem_.rows, row) + col_offset;
    products::store_element(c_ + offset * element_bytes(problem_.c_dtype), problem_.c_dtype, sum);
  }

 private:
  const Problem& problem_;
  char* const c_;
  const int64_t bias_;  // the group's first
};

template <class RealType, int kRows, int kCols>
struct ConvolutionKernel : products::TileKernel<RealType, kRows, kCols, false> {
  using Params = ConvolutionParams;
  using Real = RealType;
  using Tile = products::TileKernel<Real, kRows, kCols, false>;
  using Tile::kTileCols;
  using Tile::kTileRows;
  using PanelA = ViewPanel<Real, kTileRows>;
  using PanelB = ViewPanel<Real, kTileCols>;

  static BRIDGE_DEVICE void run(const Params& params) {
    products::each_tile<Tile>(params.tile, [&](int64_t group, int64_t row, int64_t col) {
      compute_tile(params, group, row, col);
    });
  }

 private:
  static BRIDGE_DEVICE void compute_tile(const Params& params, int64_t group, int64_t row,
                                         int64_t col) {
    const Problem& problem = params.problem;
    const int64_t terms = problem.term_count;
    Real* const shared_a = simt::shared_array<Real, 2 * kStep * PanelA::kWidth, 0>();
    Real* const shared_b = simt::shared_array<Real, 2 * kStep * PanelB::kWidth, 1>();
    PanelA a(problem.a, group * params.steps.a, row, problem.row_count, terms);
    PanelB b(problem.b, group * params.steps.b, col, problem.col_count, terms);
    Real sums[kRows][kCols];
    Tile::fill(terms == 0 ? Real(0) : Real(-0.0), sums);  // -0 + x is x
    a.read(0);
    b.read(0);
    int64_t leaf = 0;
    int buffer = 0;
    for (int64_t first = 0; first < terms; first += kStep, buffer ^= 1) {
      Real* const step_a = shared_a + buffer * kStep * PanelA::kWidth;
      Real* const step_b = shared_b + buffer * kStep * PanelB::kWidth;
      a.write(step_a);
      b.write(step_b);
      // The other buffer is free for the next step: all threads have left it by the last barrier.
      simt::sync();
      const int64_t rest = terms - first;
      if (rest > kStep) {
        a.read(first + kStep);
        b.read(first + kStep);
      }
      Tile::template add_step<false>(step_a, step_b, rest, sums);
      const bool is_last = rest <= kStep;
      if (is_last || (first + kStep) % kProductLeaf == 0)
        Tile::end_leaf(params.tile, leaf++, is_last, sums);
    }
    const Result<Real> result(params, group);
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const int64_t at_col = col + Tile::template lane_of<kCols>(Tile::thread_col(), j);
      if (!result.has_col(at_col)) continue;
      const int64_t col_offset = result.col_offset(at_col);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        result.write(row + Tile::template lane_of<kRows>(Tile::thread_row(), i), at_col, col_offset,
                     sums[i][j]);
    }
    simt::sync();  // the next tile writes the buffers
  }
};

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_TILE_CUH_
