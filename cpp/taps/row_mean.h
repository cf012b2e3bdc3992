// The mean over the places of a row, in the tree of row_sum_tree.h. Include this only in files that
// are compiled once for each instruction set.
#ifndef BRIDGE_TAPS_ROW_MEAN_H_
#define BRIDGE_TAPS_ROW_MEAN_H_

#include "drivers/rows/row_sums.h"
#include "taps/lanes.h"
#include "tiles/memory_parts.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class T, class Real>
class RowMean {
 public:
  static constexpr int kWidth = kLanes<Real>, kVectors = 4;
  static constexpr int64_t kBlock = kVectors * kWidth;  // lanes of a unit
  static constexpr int kMostNodes = 64;                 // of the tree of chunks

  struct Memory {
    Real *quarter, *nodes;
    Memory(MemoryParts& parts, bool has_lanes) {
      quarter = parts.take<Real>(has_lanes ? kSumQuarter * kBlock : 0);
      nodes = parts.take<Real>(has_lanes ? kMostNodes * kBlock : 0);
    }
  };

  static int64_t units(const bridge_taps& call) {
    return call.outer * ((call.inner + kBlock - 1) / kBlock);
  }

  static void run(const bridge_taps& call, const Memory& memory, int64_t first, int64_t end) {
    const int64_t blocks = (call.inner + kBlock - 1) / kBlock;
    const RowMean task(call, memory);
    for (int64_t unit = first; unit < end; ++unit) {
      if (call.inner == 1) {
        task.write_mean(static_cast<const T*>(call.x) + unit * call.places, 1,
                        static_cast<T*>(call.result) + unit);
        continue;
      }
      const int64_t lane = unit % blocks * kBlock;
      task.run_lanes(unit / blocks, lane, smaller(call.inner - lane, kBlock));
    }
  }

 private:
  RowMean(const bridge_taps& call, const Memory& memory) : call_(call), memory_(memory) {}

  struct Terms {
    const Real* from;
    BRIDGE_INLINE Real term(int64_t i) const { return from[i]; }
  };

  static Real sum_part(const Real* terms, int64_t count) {
    const int64_t whole = count / kStep * kStep;
    alignas(64) Real tail[kStep];
    for (int64_t i = 0; i < kStep; ++i) tail[i] = whole + i < count ? terms[whole + i] : Real(-0.0);
    return sum_chunk<Real>(Terms{terms}, Terms{tail}, count);
  }

  // Writes the mean of numbers that are `step` apart.
  void write_mean(const T* from, int64_t step, T* to) const {
    ChunkTree<Real> tree;
    tree.begin();
    alignas(64) Real wide[kSumChunk];
    for (int64_t at = 0; at < call_.places; at += kSumChunk) {
      const int64_t count = smaller(kSumChunk, call_.places - at);
      const Real* terms = wide;
      if (step != 1)
        for (int64_t i = 0; i < count; ++i) wide[i] = to_real<Real>(from[(at + i) * step]);
      else if constexpr (sizeof(T) == sizeof(Real))
        terms = from + at;
      else
        load_run_of<T>(from + at, wide, count);
      tree.add(sum_part(terms, count));
    }
    *to = math::round_to<T>(tree.end() / Real(call_.places));
  }

  void run_lanes(int64_t outer, int64_t lane, int64_t lanes) const {
    const T* const from =
        static_cast<const T*>(call_.x) + outer * call_.places * call_.inner + lane;
    T* const to = static_cast<T*>(call_.result) + outer * call_.inner + lane;
    int64_t at = 0;
    if (lanes == kBlock) {
      sum_lanes<kVectors>(from, to);
      at = kBlock;
    }
    for (; at + kWidth <= lanes; at += kWidth) sum_lanes<1>(from + at, to + at);
    for (; at < lanes; ++at) write_mean(from + at, call_.inner, to + at);
  }

  // Widens and sums lanes of all places.
  template <int kCount>
  void sum_lanes(const T* from, T* to) const {
    constexpr int64_t kSums = kCount * kWidth;
    int64_t chunks = 0, depth = 0;
    Real* const node = memory_.nodes;
    for (int64_t at = 0; at < call_.places; at += kSumChunk) {
      add_chunk<kCount>(from + at * call_.inner, smaller(kSumChunk, call_.places - at));
      for (int64_t bits = chunks++; (bits & 1) != 0; bits >>= 1)
        add_before(node + --depth * kSums, kSums, memory_.quarter);
      copy(node + depth++ * kSums, memory_.quarter, kSums);
    }
    Real* const sum = node + --depth * kSums;
    while (depth > 0) add_before(node + --depth * kSums, kSums, sum);
    BRIDGE_UNROLL
    for (int v = 0; v < kCount; ++v) {
      const Vector<Real> total = load(sum + v * kWidth);
      store_lanes<Real>(to + v * kWidth, total / all_of(Real(call_.places)));
    }
  }

  // Adds to sums the ones on their left in the tree.
  static void add_before(const Real* left, int64_t count, Real* sums) {
    for (int64_t i = 0; i < count; i += kWidth) store(sums + i, load(left + i) + load(sums + i));
  }

  // Leaves the sum of `count` places in the first lanes of `quarter`.
  template <int kCount>
  void add_chunk(const T* from, int64_t count) const {
    constexpr int64_t kSums = kCount * kWidth, q = kSumQuarter;
    Real* const sums = memory_.quarter;
    const int64_t inner = call_.inner;
    int64_t width = smaller(count, q);
    const auto at = [&](int64_t place, int v) {
      return place < count ? load_lanes<Real>(from + place * inner + v * kWidth)
                           : all_of(Real(-0.0));
    };
    for (int64_t i = 0; i < width; ++i) {
      BRIDGE_UNROLL
      for (int v = 0; v < kCount; ++v) {
        Vector<Real> sum = at(i, v);
        if (i + q < count) sum = sum + at(i + q, v);
        if (i + 2 * q < count) sum = sum + (at(i + 2 * q, v) + at(i + 3 * q, v));
        store(sums + i * kSums + v * kWidth, sum);
      }
    }
    for (int64_t half = q / 2; half > 0; half /= 2) {
      if (width <= half) continue;
      for (int64_t i = 0; i < (width - half) * kSums; i += kWidth)
        store(sums + i, load(sums + i) + load(sums + half * kSums + i));
      width = half;
    }
  }

  const bridge_taps& call_;
  const Memory& memory_;
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TAPS_ROW_MEAN_H_
