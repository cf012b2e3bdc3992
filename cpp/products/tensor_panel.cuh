// The operands of a product on tensor cores, on their way from global memory to the registers.
#ifndef BRIDGE_PRODUCTS_TENSOR_PANEL_CUH_
#define BRIDGE_PRODUCTS_TENSOR_PANEL_CUH_

#include <bridge/bridge.h>
#include <stdint.h>

#include "cuda/tensor_core.h"

namespace bridge::products {

constexpr int kTensorStep = 32;  // terms that are copied at once; it divides a leaf

// The layout of an operand: 16 bytes are adjacent terms, adjacent lanes (rows of a or columns of
// b), or neither, so that elements are read one by one.
enum class Runs { terms, lanes, none };

// A step of an operand's part in a tile, in shared memory: kWarps * kLanes rows of a or columns of
// b, kLanes for a warp. It has a row of terms for each lane, or a row of lanes for each term if
// these are adjacent in the array.
template <bool kIsLeft, bool kHasLanesInRows, int kWarps, int kLanes, int kThreads>
class TensorStep {
 public:
  static constexpr int kRun = 8;  // elements
  static constexpr int kAllLanes = kWarps * kLanes;
  static constexpr int kRowRuns = (kHasLanesInRows ? kAllLanes : kTensorStep) / kRun;
  static constexpr int kAllRuns = kAllLanes * kTensorStep / kRun;
  // The thread copies runs below each other, kApart rows apart.
  static constexpr int kOwnRuns = (kAllRuns + kThreads - 1) / kThreads;
  static constexpr int kApart = kThreads / kRowRuns;
  static_assert(kOwnRuns == 1 || kApart % 8 == 0);

  explicit BRIDGE_DEVICE TensorStep(int warp) {
    // The halves of 16 lanes and of 16 terms that the thread names.
    const int lane = simt::thread_index() % simt::kWarpThreads, upper = lane / 8 % 2;
    const int last = lane / 16;
    const int own_lane = warp * kLanes + (kIsLeft ? upper : last) * 8;
    const int own_term = (kIsLeft ? last : upper) * 8;
    const int row = (kHasLanesInRows ? own_term : own_lane) + lane % 8;
    load_ = simt::unknown(place(row, (kHasLanesInRows ? own_lane : own_term) / kRun));
  }

  // Loads the block of 16 lanes and 16 terms of a step: as mma's operand a, or as two operands b.
  BRIDGE_DEVICE void load(const simt::Vector16* shared, int lanes, int terms,
                          uint32_t (&words)[4]) const {
    // The first run of a warp is a multiple of those that it loads, so that ^ adds to its number.
    const int runs = 2 * (kHasLanesInRows ? lanes : terms), rows = kHasLanesInRows ? terms : lanes;
    simt::load_matrices<kHasLanesInRows>(shared + (load_ ^ runs) + rows * 16 * kRowRuns, words);
  }

 protected:
  // Eight rows below each other have a run in different banks of shared memory. Rows that are a
  // multiple of 8 apart have their runs in the same order.
  static BRIDGE_DEVICE uint32_t place(int row, int run) {
    constexpr int kSpan = kRowRuns < 8 ? kRowRuns : 8;
    return static_cast<uint32_t>(row * kRowRuns + (run ^ (row / (8 / kSpan) % kSpan)));
  }

  // The row and the run in it of the thread's first run.
  static BRIDGE_DEVICE int first_row() { return simt::thread_index() / kRowRuns; }
  static BRIDGE_DEVICE int own_run() { return simt::thread_index() % kRowRuns; }
  static BRIDGE_DEVICE bool has_runs() {
    return kAllRuns >= kThreads || simt::thread_index() < kAllRuns;
  }

  // The place of the thread's element i of a step, for operands without runs. Neighbours read
  // adjacent lanes if there are any, else terms; then the elements of a thread are in one lane, or
  // in one term.
  static constexpr int kOwnElements = kAllLanes * kTensorStep / kThreads;
  static constexpr int kTermsApart = kThreads / kAllLanes, kLanesApart = kThreads / kTensorStep;
  static BRIDGE_DEVICE int element_lane(bool has_adjacent_lanes, int i) {
    const int element = simt::thread_index() + i * kThreads;
    return has_adjacent_lanes ? element % kAllLanes : element / kTensorStep;
  }
  static BRIDGE_DEVICE int element_term(bool has_adjacent_lanes, int i) {
    const int element = simt::thread_index() + i * kThreads;
    return has_adjacent_lanes ? element / kAllLanes : element % kTensorStep;
  }
  static BRIDGE_DEVICE void store_elements(simt::Vector16* shared, bool has_adjacent_lanes,
                                           const uint16_t (&values)[kOwnElements]) {
#pragma unroll
    for (int i = 0; i < kOwnElements; ++i) {
      const int term = element_term(has_adjacent_lanes, i);
      const auto run = place(element_lane(has_adjacent_lanes, i), term / kRun);
      simt::store_word(reinterpret_cast<uint16_t*>(shared) + run * kRun + term % kRun, values[i]);
    }
  }

 private:
  uint32_t load_;  // the first row that the thread names
};

// The part of an operand in a tile. kRuns promises that runs of 16 bytes are aligned, and in the
// array as a whole or not at all.
template <bool kIsLeft, Runs kRuns, int kWarps, int kLanes, int kThreads>
class TensorPanel : public TensorStep<kIsLeft, kRuns == Runs::lanes, kWarps, kLanes, kThreads> {
 public:
  using Step = TensorStep<kIsLeft, kRuns == Runs::lanes, kWarps, kLanes, kThreads>;
  using Step::kAllLanes;
  using Step::kRun;
  static constexpr bool kHasLanesInRows = kRuns == Runs::lanes;

  BRIDGE_DEVICE TensorPanel(const char* data, int64_t lanes, int64_t terms, int64_t lane_stride,
                            int64_t term_stride, int warp)
      : Step(warp),
        at_(data),
        terms_(terms),
        lane_bytes_(lane_stride * 2),
        term_bytes_(term_stride * 2) {
    lanes_ = static_cast<int>(lanes < kAllLanes ? lanes : kAllLanes);
    if constexpr (kRuns != Runs::none) {
      const int row = Step::first_row(), run = Step::own_run();
      place_ = simt::unknown(Step::place(row, run));
      at_ += row * (kHasLanesInRows ? term_bytes_ : lane_bytes_) + run * 16;
      terms_ -= kHasLanesInRows ? row : run * kRun;
      lanes_ -= kHasLanesInRows ? run * kRun : row;
    } else {
      const int lane = Step::element_lane(lane_bytes_ == 2, 0);
      const int term = Step::element_term(lane_bytes_ == 2, 0);
      at_ += lane * lane_bytes_ + term * term_bytes_;
      terms_ -= term;
      lanes_ -= lane;
    }
  }

  // Begins to copy the next step. All threads take part.
  BRIDGE_DEVICE void copy(simt::Vector16* shared) {
    if constexpr (kRuns == Runs::none)
      copy_elements(shared);
    else
      copy_runs(shared + place_);
    at_ += term_bytes_ * kTensorStep;
    terms_ -= kTensorStep;
  }

 private:
  BRIDGE_DEVICE void copy_runs(simt::Vector16* to) const {
    if (!Step::has_runs()) return;
    const int64_t row_bytes = kHasLanesInRows ? term_bytes_ : lane_bytes_;
#pragma unroll
    for (int r = 0; r < Step::kOwnRuns; ++r) {
      const int row = r * Step::kApart;
      const bool has_data =
          lanes_ > (kHasLanesInRows ? 0 : row) && terms_ > (kHasLanesInRows ? row : 0);
      simt::begin_copy16(to + row * Step::kRowRuns, at_ + row * row_bytes, has_data);
    }
  }

  BRIDGE_DEVICE void copy_elements(simt::Vector16* shared) const {
    const bool has_adjacent_lanes = lane_bytes_ == 2;
    const int64_t apart =
        has_adjacent_lanes ? term_bytes_ * Step::kTermsApart : lane_bytes_ * Step::kLanesApart;
    uint16_t values[Step::kOwnElements];
#pragma unroll
    for (int i = 0; i < Step::kOwnElements; ++i) {
      const bool has_data = has_adjacent_lanes ? lanes_ > 0 && terms_ > i * Step::kTermsApart
                                               : terms_ > 0 && lanes_ > i * Step::kLanesApart;
      values[i] = has_data ? simt::load_word<uint16_t>(at_ + i * apart) : uint16_t{0};
    }
    Step::store_elements(shared, has_adjacent_lanes, values);
  }

  const char* at_;
  int64_t terms_, lane_bytes_, term_bytes_;  // terms and lanes from the thread's first on
  int lanes_;
  uint32_t place_ = 0;  // of its first run
};

}  // namespace bridge::products

#endif  // BRIDGE_PRODUCTS_TENSOR_PANEL_CUH_
