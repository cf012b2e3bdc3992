// Convolutions on CUDA as products of patches: a tile of products/product.cuh, whose operands are
// views. Each thread finds its elements of a step by their numbers.
#ifndef BRIDGE_CONVOLUTION_TILE_CUH_
#define BRIDGE_CONVOLUTION_TILE_CUH_

#include "convolution/views.h"
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

// A lane or a term: its elements from the view's first, and its part of each coordinate.
struct Number {
  int64_t offset, coordinate[kSpace];
};

// The place of a number of an axis, in elements from the first.
BRIDGE_DEVICE int64_t offset_in(const Axis& axis, int64_t number) {
  int64_t offset = 0;
#pragma unroll
  for (int d = kAxisDims - 1; d >= 0; --d) {
    if (axis.size[d] == 1) continue;
    offset += number % axis.size[d] * axis.stride[d];
    number /= axis.size[d];
  }
  return offset;
}

BRIDGE_DEVICE Number number_of(const View& view, bool is_lane, int64_t number) {
  const Axis& axis = is_lane ? view.lanes : view.terms;
  if (view.places == Places::none) return {offset_in(axis, number), {}};
  const bool is_place = (view.places == Places::lanes) == is_lane;
  int64_t at[kAxisDims];
  Number all{};
#pragma unroll
  for (int d = kAxisDims - 1; d >= 0; --d) {
    at[d] = axis.size[d] == 1 ? 0 : number % axis.size[d];
    if (axis.size[d] != 1) number /= axis.size[d];
    all.offset += at[d] * axis.stride[d];
  }
#pragma unroll
  for (int d = 0; d < kSpace; ++d)
    all.coordinate[d] =
        is_place ? view.start[d] + at[d + 1] * view.place_step[d] : at[d] * view.window_step[d];
  return all;
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
      if (is_lane_[r]) lanes_[r] = number_of(view, true, first + lane(r));
    }
  }

  // Reads the step from term `first` on.
  BRIDGE_DEVICE void read(int64_t first) {
    Number number{};
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int64_t at = first + term(r);
      values_[r] = 0;
      if (!is_lane_[r] || at >= terms_) continue;
      if (r == 0 || has_adjacent_lanes_) number = number_of(view_, false, at);
      bool is_inside = true;
      if (view_.places != Places::none) {
#pragma unroll
        for (int d = 0; d < kSpace; ++d) {
          const int64_t place = lanes_[r].coordinate[d] + number.coordinate[d];
          is_inside = is_inside && place >= 0 && place < view_.size[d];
        }
      }
      const int64_t offset = group_offset_ + lanes_[r].offset + number.offset;
      if (is_inside)
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
  Number lanes_[kOwn];
  Real values_[kOwn];
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
    const int64_t tiles = params.tile.row_tiles * params.tile.col_tiles;
    for (int64_t unit = simt::block_index().x; unit < params.tile.tiles;
         unit += simt::block_count().x)
      compute_tile(params, unit / tiles, unit % tiles / params.tile.col_tiles * kTileRows,
                   unit % params.tile.col_tiles * kTileCols);
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
    write(params, group, row, col, sums);
    simt::sync();  // the next tile writes the buffers
  }

  static BRIDGE_DEVICE void write(const Params& params, int64_t group, int64_t row, int64_t col,
                                  const Real (&sums)[kRows][kCols]) {
    const Problem& problem = params.problem;
    const int64_t bytes = element_bytes(problem.c_dtype);
    const int64_t bias_bytes = element_bytes(problem.bias_dtype);
    char* const c = problem.c + group * params.steps.c * bytes;
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const int64_t at_col = col + Tile::template lane_of<kCols>(Tile::thread_col(), j);
      if (at_col >= problem.col_count) continue;
      const int64_t col_offset = offset_in(problem.cols, at_col);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t at_row = row + Tile::template lane_of<kRows>(Tile::thread_row(), i);
        if (at_row >= problem.row_count) continue;
        Real sum = sums[i][j];
        if (problem.bias != nullptr) {
          const int64_t number = problem.has_row_bias ? at_row : at_col;
          const int64_t place = group * params.steps.bias + number * problem.bias_stride;
          sum = sum +
                products::load_element<Real>(problem.bias + place * bias_bytes, problem.bias_dtype);
        }
        products::store_element(c + (offset_in(problem.rows, at_row) + col_offset) * bytes,
                                problem.c_dtype, sum);
      }
    }
  }
};

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_TILE_CUH_
