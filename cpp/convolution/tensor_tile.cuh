// Convolutions of operands of float16, or of bfloat16, on tensor cores: a tile of
// products/tensor_tile.cuh, whose operands are views.
#ifndef BRIDGE_CONVOLUTION_TENSOR_TILE_CUH_
#define BRIDGE_CONVOLUTION_TENSOR_TILE_CUH_

#include "convolution/tile.cuh"
#include "products/tensor_tile.cuh"

namespace bridge::convolution {

using products::kTensorStep;
using products::Runs;

// A number of an axis that goes up in equal steps, without division.
template <class Int>
class Counter {
 public:
  BRIDGE_DEVICE Counter(const Axis& axis, Int first, Int step)
      : axis_(axis), at_(digits_of(axis, first)), step_(digits_of(axis, step)) {}

  BRIDGE_DEVICE const Digits<Int>& digits() const { return at_; }

  // Goes on. Behind the end of the axis the digits mean nothing.
  BRIDGE_DEVICE void advance() {
    Int carry = 0;
#pragma unroll
    for (int d = kAxisDims - 1; d >= 0; --d) {
      at_.at[d] += step_.at[d] + carry;
      const auto size = static_cast<Int>(axis_.size[d]);
      carry = at_.at[d] >= size ? 1 : 0;
      if (carry != 0) at_.at[d] -= size;
    }
  }

 private:
  const Axis& axis_;
  Digits<Int> at_, step_;
};

// The part of a view in a tile. kRuns promises that runs of 16 bytes are aligned, and in the array
// as a whole or not at all. Only a left operand has places.
template <class Int, bool kIsLeft, Runs kRuns, int kWarps, int kLanes, int kThreads>
class TensorViewPanel
    : public products::TensorStep<kIsLeft, kRuns == Runs::lanes, kWarps, kLanes, kThreads> {
 public:
  using Step = products::TensorStep<kIsLeft, kRuns == Runs::lanes, kWarps, kLanes, kThreads>;

  BRIDGE_DEVICE TensorViewPanel(const View& view, int64_t group_offset, int64_t first,
                                int64_t lanes, int64_t terms, int warp)
      : Step(warp),
        view_(view),
        data_(view.data + (view.offset + group_offset) * 2),
        rest_of_lanes_(static_cast<Int>(lanes - first) - own_lane(view)),
        rest_of_terms_(static_cast<Int>(terms) - own_term(view)),
        lane_(view.lanes, static_cast<Int>(first) + own_lane(view), kLanesApart),
        term_(view.terms, own_term(view), terms_apart(view)) {
    place_ = simt::unknown(Step::place(Step::first_row(), Step::own_run()));
    Counter<Int> lane = lane_;
#pragma unroll
    for (int r = 0; r < kKept; ++r) {
      lanes_[r] = number_of(view, true, lane.digits());
      if (r + 1 < kKept) lane.advance();
    }
  }

  // Begins to copy the next step. All threads take part.
  BRIDGE_DEVICE void copy(simt::Vector16* shared) {
    if constexpr (kRuns == Runs::none)
      copy_elements(shared);
    else
      copy_runs(shared + place_);
    rest_of_terms_ -= kTensorStep;
  }

 private:
  static constexpr bool kHasLanesInRows = kRuns == Runs::lanes, kHasRuns = kRuns != Runs::none;
  static constexpr int kLanesApart = kHasRuns ? Step::kApart : Step::kLanesApart;
  // The thread's lanes whose numbers it keeps.
  static constexpr int kKept = kRuns == Runs::terms ? Step::kOwnRuns : 1;

  static BRIDGE_DEVICE bool has_adjacent_lanes(const View& view) {
    return view.lanes.stride[kAxisDims - 1] == 1;
  }
  // The thread's first lane and term of a step.
  static BRIDGE_DEVICE int own_lane(const View& view) {
    if constexpr (!kHasRuns) return Step::element_lane(has_adjacent_lanes(view), 0);
    return kHasLanesInRows ? Step::own_run() * Step::kRun : Step::first_row();
  }
  static BRIDGE_DEVICE int own_term(const View& view) {
    if constexpr (!kHasRuns) return Step::element_term(has_adjacent_lanes(view), 0);
    return kHasLanesInRows ? Step::first_row() : Step::own_run() * Step::kRun;
  }
  // From a term of the thread to its next one, of this step or of the next step.
  static BRIDGE_DEVICE int terms_apart(const View& view) {
    if constexpr (!kHasRuns) return has_adjacent_lanes(view) ? Step::kTermsApart : kTensorStep;
    return kHasLanesInRows ? kTensorStep / Step::kOwnRuns : kTensorStep;
  }

  BRIDGE_DEVICE Number<Int> next_term() {
    const Number<Int> term = number_of(view_, false, term_.digits());
    term_.advance();
    return term;
  }
  BRIDGE_DEVICE bool is_inside(const Number<Int>& lane, const Number<Int>& term) const {
    return !kIsLeft || is_in_array(view_, lane, term);
  }
  BRIDGE_DEVICE const char* at(const Number<Int>& lane, const Number<Int>& term) const {
    return data_ + int64_t{lane.offset + term.offset} * 2;
  }

  BRIDGE_DEVICE void copy_runs(simt::Vector16* to) {
    if (!Step::has_runs()) return;
    Number<Int> term{};
#pragma unroll
    for (int r = 0; r < Step::kOwnRuns; ++r) {
      const int row = r * Step::kApart;
      if (kHasLanesInRows || r == 0) term = next_term();
      const Number<Int>& lane = lanes_[kHasLanesInRows ? 0 : r];
      const bool has_data = rest_of_lanes_ > (kHasLanesInRows ? 0 : row) &&
                            rest_of_terms_ > (kHasLanesInRows ? row : 0) && is_inside(lane, term);
      simt::begin_copy16(to + row * Step::kRowRuns, at(lane, term), has_data);
    }
  }

  BRIDGE_DEVICE void copy_elements(simt::Vector16* shared) {
    uint16_t values[Step::kOwnElements];
    if (has_adjacent_lanes(view_)) {
#pragma unroll
      for (int i = 0; i < Step::kOwnElements; ++i) {
        const Number<Int> term = next_term();
        const bool has_data = rest_of_lanes_ > 0 && rest_of_terms_ > i * Step::kTermsApart &&
                              is_inside(lanes_[0], term);
        values[i] = has_data ? simt::load_word<uint16_t>(at(lanes_[0], term)) : uint16_t{0};
      }
    } else {
      const Number<Int> term = next_term();
      Counter<Int> counter = lane_;
#pragma unroll
      for (int i = 0; i < Step::kOwnElements; ++i) {
        const Number<Int> lane = number_of(view_, true, counter.digits());
        counter.advance();
        const bool has_data =
            rest_of_terms_ > 0 && rest_of_lanes_ > i * Step::kLanesApart && is_inside(lane, term);
        values[i] = has_data ? simt::load_word<uint16_t>(at(lane, term)) : uint16_t{0};
      }
    }
    Step::store_elements(shared, has_adjacent_lanes(view_), values);
  }

  const View& view_;
  const char* const data_;
  Int rest_of_lanes_, rest_of_terms_;  // from the thread's first on
  Counter<Int> lane_, term_;
  Number<Int> lanes_[kKept];
  uint32_t place_;  // of its first run
};

template <class Int, class Element, Runs kRunsA, Runs kRunsB, int kWarpRows, int kWarpCols,
          int kRows, int kCols, int kThreads = kWarpRows * kWarpCols * simt::kWarpThreads>
struct TensorConvolutionKernel
    : products::TensorTile<Element, TensorViewPanel<Int, true, kRunsA, kWarpRows, kRows, kThreads>,
                           TensorViewPanel<Int, false, kRunsB, kWarpCols, kCols, kThreads>,
                           kWarpRows, kWarpCols, kRows, kCols> {
  using Params = ConvolutionParams;
  using Tile = typename TensorConvolutionKernel::TensorTile;
  using typename Tile::PanelA;
  using typename Tile::PanelB;
  using typename Tile::Sums;
  // A thread without runs needs more registers than a product's thread has.
  static constexpr int kMinBlocks = kRunsA == Runs::none ? 1 : Tile::kMinBlocks;

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
    PanelA a(problem.a, group * params.steps.a, row, problem.row_count, terms, Tile::warp_row());
    PanelB b(problem.b, group * params.steps.b, col, problem.col_count, terms, Tile::warp_col());
    Sums sums;
    Tile::add_all(params.tile, terms, a, b, sums);
    const Result<float> result(params, group);
#pragma unroll
    for (int j = 0; j < Tile::kColMmas; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int64_t at_col = col + Tile::col_of(j, e);
        if (!result.has_col(at_col)) continue;
        const int64_t col_offset = result.col_offset(at_col);
#pragma unroll
        for (int i = 0; i < Tile::kRowMmas * 2; ++i)
          result.write(row + Tile::row_of(i), at_col, col_offset, sums[i / 2][j][i % 2 * 2 + e]);
      }
    }
    simt::sync();  // the next tile writes the stages
  }
};

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_TENSOR_TILE_CUH_
