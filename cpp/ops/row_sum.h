// The tree of ops/row_sums.h, for the files that are compiled once for each instruction set:
// include it there only.
#ifndef BRIDGE_OPS_ROW_SUM_H_
#define BRIDGE_OPS_ROW_SUM_H_

#include "cpu/tile.h"
#include "ops/row_sums.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// The last steps of a chunk, over the lanes.
template <class Real>
inline __attribute__((always_inline)) Real fold_lanes(Real* lane) {
  for (int i = 0; i < 16; ++i) lane[i] = lane[i] + lane[i + 16];
  for (int i = 0; i < 8; ++i) lane[i] = lane[i] + lane[i + 8];
  for (int i = 0; i < 4; ++i) lane[i] = lane[i] + lane[i + 4];
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

// The sum of a chunk of `count` terms, 1 to kSumChunk, padded with -0.0 to a multiple of kStep.
template <class Real>
inline __attribute__((always_inline)) Real sum_chunk(const Real* term, int64_t count) {
  static_assert(kStep == 32, "the last steps fold one step of lanes");
  alignas(64) Real sum[kSumQuarter];
  constexpr int64_t q = kSumQuarter;
  const int64_t padded = round_up(count);
  int64_t width = padded < q ? padded : q;
  if (padded == kSumChunk) {
    for (int64_t i = 0; i < q; ++i)
      sum[i] = (term[i] + term[i + q]) + (term[i + 2 * q] + term[i + 3 * q]);
  } else {
    // The columns that the last quarter still has, and those that it lacks.
    const int64_t quarters = padded / q, rest = padded % q;
    for (int64_t part = 0; part < 2; ++part) {
      const int64_t begin = part == 0 ? 0 : rest, end = part == 0 ? rest : width;
      switch (quarters + (part == 0 ? 1 : 0)) {
        case 1:
          for (int64_t i = begin; i < end; ++i) sum[i] = term[i];
          break;
        case 2:
          for (int64_t i = begin; i < end; ++i) sum[i] = term[i] + term[i + q];
          break;
        case 3:
          for (int64_t i = begin; i < end; ++i) sum[i] = (term[i] + term[i + q]) + term[i + 2 * q];
          break;
        case 4:
          for (int64_t i = begin; i < end; ++i)
            sum[i] = (term[i] + term[i + q]) + (term[i + 2 * q] + term[i + 3 * q]);
          break;
        default:
          break;
      }
    }
  }
  for (int64_t half = q / 2; half >= kStep; half /= 2) {
    for (int64_t i = 0; i < width - half; ++i) sum[i] = sum[i] + sum[i + half];
    if (width > half) width = half;
  }
  return fold_lanes(sum);
}

// Chunks in their order, added in the aligned binary tree: finished nodes stand on a stack, one for
// each bit of their number, as in a binary counter.
template <class Real>
class ChunkTree {
 public:
  void add(Real chunk) {
    for (int64_t bits = chunks_++; bits & 1; bits >>= 1) chunk = node_[--depth_] + chunk;
    node_[depth_++] = chunk;
  }
  // The sum; -0.0 of nothing.
  Real end() {
    if (depth_ == 0) return Real(-0.0);
    Real sum = node_[--depth_];
    while (depth_ > 0) sum = node_[--depth_] + sum;
    return sum;
  }

 private:
  int64_t chunks_ = 0;
  int depth_ = 0;
  Real node_[64];
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_OPS_ROW_SUM_H_
