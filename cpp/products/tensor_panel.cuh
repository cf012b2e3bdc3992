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

// The part of an operand in a tile: kWarps * kLanes rows of a or columns of b, kLanes for a warp.
// In shared memory it has a row of terms for each lane, or a row of lanes for each term if these
// are adjacent in the array.
//
// kRuns promises that runs of 16 bytes are aligned, and in the array as a whole or not at all.
template <class Element, bool kIsLeft, Runs kRuns, int kWarps, int kLanes, int kThreads>
class TensorPanel {
 public:
  static constexpr int kRun = 8;  // elements
  static constexpr bool kHasLanesInRows = kRuns == Runs::lanes;
  static constexpr int kAllLanes = kWarps * kLanes;
  static constexpr int kRowRuns = (kHasLanesInRows ? kAllLanes : kTensorStep) / kRun;
  static constexpr int kAllRuns = kAllLanes * kTensorStep / kRun;  // of a step

  BRIDGE_DEVICE TensorPanel(const char* data, int64_t lanes, int64_t terms, int64_t lane_stride,
                            int64_t term_stride, int warp)
      : at_(data), terms_(terms), lane_bytes_(lane_stride * 2), term_bytes_(term_stride * 2) {
    lanes_ = static_cast<int>(lanes < kAllLanes ? lanes : kAllLanes);
    const int thread = simt::thread_index(), lane = thread % simt::kWarpThreads;
    if constexpr (kRuns != Runs::none) {
      const int row = thread / kRowRuns, run = thread % kRowRuns;
      place_ = simt::unknown(place(row, run));
      at_ += row * (kHasLanesInRows ? term_bytes_ : lane_bytes_) + run * 16;
      terms_ -= kHasLanesInRows ? row : run * kRun;
      lanes_ -= kHasLanesInRows ? run * kRun : row;
    } else {
      at_ += element_lane(0) * lane_bytes_ + element_term(0) * term_bytes_;
      terms_ -= element_term(0);
      lanes_ -= element_lane(0);
    }
    // The halves of 16 lanes and of 16 terms that the thread names.
    const int upper = lane / 8 % 2, last = lane / 16;
    const int own_lane = warp * kLanes + (kIsLeft ? upper : last) * 8;
    const int own_term = (kIsLeft ? last : upper) * 8;
    const int row = (kHasLanesInRows ? own_term : own_lane) + lane % 8;
    load_ = simt::unknown(place(row, (kHasLanesInRows ? own_lane : own_term) / kRun));
  }

  // Begins to copy the next step. All threads take part.
  BRIDGE_DEVICE void copy(simt::Vector16* shared) {
    if constexpr (kRuns == Runs::none)
      copy_elements(reinterpret_cast<Element*>(shared));
    else
      copy_runs(shared + place_);
    at_ += term_bytes_ * kTensorStep;
    terms_ -= kTensorStep;
  }

  // Loads the block of 16 lanes and 16 terms of a step: as mma's operand a, or as two operands b.
  BRIDGE_DEVICE void load(const simt::Vector16* shared, int lanes, int terms,
                          uint32_t (&words)[4]) const {
    // The first run of a warp is a multiple of those that it loads, so that ^ adds to its number.
    const int runs = 2 * (kHasLanesInRows ? lanes : terms), rows = kHasLanesInRows ? terms : lanes;
    simt::load_matrices<kHasLanesInRows>(shared + (load_ ^ runs) + rows * 16 * kRowRuns, words);
  }

 private:
  // Eight rows below each other have a run in different banks of shared memory. Rows that are a
  // multiple of 8 apart have their runs in the same order.
  static BRIDGE_DEVICE uint32_t place(int row, int run) {
    constexpr int kSpan = kRowRuns < 8 ? kRowRuns : 8;
    return static_cast<uint32_t>(row * kRowRuns + (run ^ (row / (8 / kSpan) % kSpan)));
  }

  BRIDGE_DEVICE void copy_runs(simt::Vector16* to) const {
    constexpr int kOwn = (kAllRuns + kThreads - 1) / kThreads;
    constexpr int kApart = kThreads / kRowRuns;  // rows between the runs of a thread
    static_assert(kOwn == 1 || kApart % 8 == 0);
    if (kAllRuns < kThreads && simt::thread_index() >= kAllRuns) return;
    const int64_t row_bytes = kHasLanesInRows ? term_bytes_ : lane_bytes_;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int row = r * kApart;
      const bool has_data =
          lanes_ > (kHasLanesInRows ? 0 : row) && terms_ > (kHasLanesInRows ? row : 0);
      simt::begin_copy16(to + row * kRowRuns, at_ + row * row_bytes, has_data);
    }
  }

  // The place of the thread's element i of a step: neighbours read adjacent lanes if there are any,
  // else terms. The elements of a thread are in one term or in one lane.
  BRIDGE_DEVICE int element_lane(int i) const {
    const int element = simt::thread_index() + i * kThreads;
    return lane_bytes_ == 2 ? element % kAllLanes : element / kTensorStep;
  }
  BRIDGE_DEVICE int element_term(int i) const {
    const int element = simt::thread_index() + i * kThreads;
    return lane_bytes_ == 2 ? element / kAllLanes : element % kTensorStep;
  }

  BRIDGE_DEVICE void copy_elements(Element* shared) const {
    constexpr int kOwn = kAllLanes * kTensorStep / kThreads;
    constexpr int kTermsApart = kThreads / kAllLanes, kLanesApart = kThreads / kTensorStep;
    const bool has_adjacent_lanes = lane_bytes_ == 2;
    const int64_t apart =
        has_adjacent_lanes ? term_bytes_ * kTermsApart : lane_bytes_ * kLanesApart;
    uint16_t values[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool has_data = has_adjacent_lanes ? lanes_ > 0 && terms_ > i * kTermsApart
                                               : terms_ > 0 && lanes_ > i * kLanesApart;
      values[i] = has_data ? simt::load_word<uint16_t>(at_ + i * apart) : uint16_t{0};
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int term = element_term(i);
      const auto run = place(element_lane(i), term / kRun);
      simt::store_word(shared + run * kRun + term % kRun, values[i]);
    }
  }

  const char* at_;
  int64_t terms_, lane_bytes_, term_bytes_;  // terms and lanes from the thread's first on
  int lanes_;
  uint32_t place_ = 0, load_;  // of its first run, and of the first row that it names
};

}  // namespace bridge::products

#endif  // BRIDGE_PRODUCTS_TENSOR_PANEL_CUH_
