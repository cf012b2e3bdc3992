// Taps of planes with one inner index: a group of planes is interleaved, so that each plane is a
// lane. Include this only in files that are compiled once for each instruction set.
#ifndef BRIDGE_TAPS_PLANES_H_
#define BRIDGE_TAPS_PLANES_H_

#include "taps/lanes.h"
#include "tiles/memory_parts.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class T, class Real>
class Planes {
  using Element = std::conditional_t<sizeof(Real) == 4, int32_t, int64_t>;

 public:
  static constexpr int kGroup = kLanes<Real>;               // planes of a group
  static constexpr int64_t kOutputs = 256, kPlaces = 2048;  // most of a block
  static constexpr int64_t kFewest = (kGroup + 3) / 4;      // planes for which a group is faster

  struct Memory {
    Real *places, *sums;
    Element* found;

    Memory(MemoryParts& parts, bool is_used) {
      places = parts.take<Real>(is_used ? kPlaces * kGroup : 0);
      sums = parts.take<Real>(is_used ? kOutputs * kGroup : 0);
      found = parts.take<Element>(is_used ? kOutputs * kGroup : 0);
    }
  };

  Planes(const bridge_taps& call, const Memory& memory, int64_t plane, int64_t planes)
      : call_(call), memory_(memory), plane_(plane), planes_(planes) {}

  // Returns the first output that is left over, `end` if there is none: one whose places are too
  // many for the memory.
  int64_t run(int64_t first, int64_t end) const {
    while (first < end) {
      int64_t count = smaller(end - first, kOutputs);
      Range range = places_of(first, count);
      while (range.end - range.first > kPlaces && count > 1) {
        count = (count + 1) / 2;
        range = places_of(first, count);
      }
      if (range.end - range.first > kPlaces) return first;
      interleave(range);
      const LaneSums<Real, Real, Real, Element> lanes{
          call_, memory_.places, kGroup, memory_.sums, memory_.found, kGroup, range.first, first};
      lanes.run(first, first + count, kGroup);
      write(first, count);
      first += count;
    }
    return end;
  }

 private:
  struct Range {
    int64_t first, end;
  };

  Range places_of(int64_t output, int64_t count) const {
    int32_t low = INT32_MAX, high = 0;
    for (int64_t tap = 0; tap < call_.taps; ++tap) {
      const int32_t* const own = call_.table + tap * call_.outputs + output;
      for (int64_t i = 0; i < count; ++i) {
        // An absent first tap of LARGEST reads place 0.
        const bool is_absent = own[i] < 0;
        const int32_t least = is_absent ? (tap == 0 ? 0 : INT32_MAX) : own[i];
        low = least < low ? least : low;
        high = own[i] > high ? own[i] : high;
      }
    }
    return low > high ? Range{0, 1} : Range{low, high + 1};
  }

  void interleave(const Range& range) const {
    const T* const from = static_cast<const T*>(call_.x) + plane_ * call_.places + range.first;
    const int64_t count = range.end - range.first, whole = count / kGroup * kGroup;
    for (int64_t p = 0; p < whole; p += kGroup) {
      Vector<Real> rows[kGroup];
      BRIDGE_UNROLL
      for (int i = 0; i < kGroup; ++i)
        rows[i] = load_lanes<Real>(from + (i < planes_ ? i : 0) * call_.places + p);
      transpose<Real>(rows);
      BRIDGE_UNROLL
      for (int i = 0; i < kGroup; ++i) store(memory_.places + (p + i) * kGroup, rows[i]);
    }
    for (int64_t i = 0; i < kGroup; ++i) {
      const T* const row = from + (i < planes_ ? i : 0) * call_.places;
      for (int64_t p = whole; p < count; ++p)
        memory_.places[p * kGroup + i] = to_real<Real>(row[p]);
    }
  }

  void write(int64_t first, int64_t count) const {
    const bool finds = call_.kind == BRIDGE_TAPS_LARGEST;
    // Squares move bits: places are no numbers.
    const Real* const sums = finds ? reinterpret_cast<const Real*>(memory_.found) : memory_.sums;
    const int64_t whole = count / kGroup * kGroup;
    for (int64_t p = 0; p < whole; p += kGroup) {
      Vector<Real> rows[kGroup];
      BRIDGE_UNROLL
      for (int i = 0; i < kGroup; ++i) rows[i] = load(sums + (p + i) * kGroup);
      transpose<Real>(rows);
      for (int64_t i = 0; i < planes_; ++i) {
        const int64_t at = (plane_ + i) * call_.outputs + first + p;
        if (finds)
          store_places<Real>(static_cast<int32_t*>(call_.result) + at, Index<Real>(rows[i]));
        else
          store_lanes<Real>(static_cast<T*>(call_.result) + at, rows[i]);
      }
    }
    for (int64_t i = 0; i < planes_; ++i)
      for (int64_t p = whole; p < count; ++p) {
        const int64_t at = (plane_ + i) * call_.outputs + first + p;
        if (finds)
          static_cast<int32_t*>(call_.result)[at] =
              static_cast<int32_t>(memory_.found[p * kGroup + i]);
        else
          static_cast<T*>(call_.result)[at] = math::round_to<T>(memory_.sums[p * kGroup + i]);
      }
  }

  const bridge_taps& call_;
  const Memory& memory_;
  int64_t plane_, planes_;
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TAPS_PLANES_H_
