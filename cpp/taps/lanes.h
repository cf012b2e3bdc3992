// Sums over taps with vectors along lanes, which are adjacent numbers of each place. The sums of an
// output stay in registers. Include this only in files that are compiled once for each instruction
// set.
#ifndef BRIDGE_TAPS_LANES_H_
#define BRIDGE_TAPS_LANES_H_

#include <bridge/taps.h>

#include "cpu/tile.h"
#include "cpu/vectors.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class Real, class T>
BRIDGE_INLINE Vector<Real> load_lanes(const T* from) {
  if constexpr (sizeof(T) == sizeof(Real)) {
    return load<Real>(from);
  } else {
    alignas(64) Real wide[kLanes<Real>];
    load_run_of<T>(from, wide, kLanes<Real>);
    return load(wide);
  }
}

template <class Real, class T>
BRIDGE_INLINE void store_lanes(T* to, Vector<Real> sums) {
  if constexpr (sizeof(T) == sizeof(Real)) {
    store<Real>(to, sums);
  } else {
    alignas(64) Real wide[kLanes<Real>];
    store(wide, sums);
    store_run_of<T>(to, wide, kLanes<Real>);
  }
}

// Places are as wide as the numbers in scratch memory, and int32 in a result.
template <class Real, class Place>
BRIDGE_INLINE void store_places(Place* to, Index<Real> places) {
  if constexpr (sizeof(Place) == sizeof(Real)) {
    memcpy(to, &places, sizeof places);
  } else {
    for (int i = 0; i < kLanes<Real>; ++i) to[i] = static_cast<Place>(places[i]);
  }
}

// Lanes of outputs. The sums go to `to`, those of LARGEST to `places`.
template <class Real, class From, class To, class Place>
struct LaneSums {
  static constexpr int kWidth = kLanes<Real>, kMost = 4;

  const bridge_taps& call;
  const From* from;  // the first lane of place `first_place`
  int64_t pitch;     // numbers between places
  To* to;
  Place* places;  // both: the first lane of output `first_output`
  int64_t step;   // numbers between outputs
  int64_t first_place, first_output;

  // Outputs [first, end), and whole vectors of `lanes` lanes.
  void run(int64_t first, int64_t end, int64_t lanes) const {
    switch (call.kind) {
      case BRIDGE_TAPS_WEIGHTED:
        return run_as<BRIDGE_TAPS_WEIGHTED>(first, end, lanes);
      case BRIDGE_TAPS_AVERAGE:
        return run_as<BRIDGE_TAPS_AVERAGE>(first, end, lanes);
      case BRIDGE_TAPS_SHARES:
        return run_as<BRIDGE_TAPS_SHARES>(first, end, lanes);
      default:
        return run_as<BRIDGE_TAPS_LARGEST>(first, end, lanes);
    }
  }

 private:
  template <int kKind>
  void run_as(int64_t first, int64_t end, int64_t lanes) const {
    for (int64_t output = first; output < end; ++output) {
      int64_t lane = 0;
      for (; lane + kMost * kWidth <= lanes; lane += kMost * kWidth)
        run_at<kKind, kMost>(output, lane);
      if (lane + 2 * kWidth <= lanes) {
        run_at<kKind, 2>(output, lane);
        lane += 2 * kWidth;
      }
      if (lane + kWidth <= lanes) run_at<kKind, 1>(output, lane);
    }
  }

  template <int kKind, int kVectors>
  BRIDGE_INLINE void run_at(int64_t output, int64_t lane) const {
    if constexpr (kKind == BRIDGE_TAPS_LARGEST)
      find_largest<kVectors>(output, lane);
    else
      add_up<kKind, kVectors>(output, lane);
  }

  template <int kVectors>
  BRIDGE_INLINE void find_largest(int64_t output, int64_t lane) const {
    const int32_t* place = call.table + output;
    const From* line = from + ((*place < 0 ? 0 : *place) - first_place) * pitch + lane;
    Vector<Real> largest[kVectors];
    Index<Real> found[kVectors];
    BRIDGE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      largest[v] = load_lanes<Real>(line + v * kWidth);
      found[v] = Index<Real>{} + *place;
    }
    for (int64_t tap = 1; tap < call.taps; ++tap) {
      place += call.outputs;
      if (*place < 0) break;
      line = from + (*place - first_place) * pitch + lane;
      const Index<Real> own = Index<Real>{} + *place;
      BRIDGE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const Vector<Real> one = load_lanes<Real>(line + v * kWidth);
        const Index<Real> is_new = (one > largest[v]) | (one != one);
        largest[v] = is_new ? one : largest[v];
        found[v] = is_new ? own : found[v];
      }
    }
    BRIDGE_UNROLL
    for (int v = 0; v < kVectors; ++v)
      store_places<Real>(places + (output - first_output) * step + lane + v * kWidth, found[v]);
  }

  template <int kKind, int kVectors>
  BRIDGE_INLINE void add_up(int64_t output, int64_t lane) const {
    constexpr bool kHasWeights = kKind != BRIDGE_TAPS_AVERAGE;
    const Real* const weights = static_cast<const Real*>(call.weights) + output;
    const int32_t* const table = call.table + output;
    Vector<Real> total[kVectors];
    BRIDGE_UNROLL
    for (int v = 0; v < kVectors; ++v) total[v] = Vector<Real>{};
    for (int64_t tap = 0; tap < call.taps; ++tap) {
      const int32_t place = table[tap * call.outputs];
      if (place < 0) break;
      const From* const line = from + (place - first_place) * pitch + lane;
      const Vector<Real> weight = all_of(kHasWeights ? weights[tap * call.outputs] : Real(0));
      BRIDGE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const Vector<Real> one = load_lanes<Real>(line + v * kWidth);
        const Vector<Real> before = total[v];
        if constexpr (kKind == BRIDGE_TAPS_WEIGHTED)
          total[v] = tap == 0 ? one * weight : fma(one, weight, before);
        else if constexpr (kKind == BRIDGE_TAPS_SHARES)
          total[v] = tap == 0 ? one / weight : before + one / weight;
        else
          total[v] = tap == 0 ? one : before + one;
      }
    }
    if constexpr (!kHasWeights) {
      const Vector<Real> divisor = all_of(*weights);
      BRIDGE_UNROLL
      for (int v = 0; v < kVectors; ++v) total[v] = total[v] / divisor;
    }
    BRIDGE_UNROLL
    for (int v = 0; v < kVectors; ++v)
      store_lanes<Real>(to + (output - first_output) * step + lane + v * kWidth, total[v]);
  }
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TAPS_LANES_H_
