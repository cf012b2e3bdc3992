// A tile of products on tensor cores: the sums of its elements. A block computes tiles of the
// result, one after the other: steps of both operands are copied to shared memory some steps ahead,
// and each warp computes a part of the tile. A leaf is a chain of mma of 16 terms each, from
// accumulators of +0; leaves are added in the tree of product.cuh, in float32.
//
// The last mma of a product may have fewer than 16 terms. Zeros of both operands take the places of
// the others: a product of two zeros is no NaN whatever the operands hold, it adds nothing to an
// exact sum, and its exponent is not above that of the accumulator, which decides with it where a
// sum is cut (tests/simt/tensor_core_emulator.h). A chain that starts from +0 is never -0.
#ifndef BRIDGE_PRODUCTS_TENSOR_TILE_CUH_
#define BRIDGE_PRODUCTS_TENSOR_TILE_CUH_

#include "cuda/tensor_core.h"
#include "products/product.cuh"
#include "products/tensor_panel.cuh"

namespace bridge::products {

constexpr int kMmaTerms = 16, kMmaRows = 16, kMmaCols = 8;
constexpr int kMostSharedBytes = 48 << 10, kMostStages = 8;
// Threads of a multiprocessor, which bound the registers. For sm_100 the compiler would spill sums
// with as few registers as for the others.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kTensorThreads = 256;
#else
constexpr int kTensorThreads = 512;
#endif

// A warp computes kRows x kCols elements, and kWarpRows x kWarpCols warps a tile. The panels copy
// the operands' steps, one after the other, and load blocks of them.
template <class ElementType, class LeftPanel, class RightPanel, int kWarpRows, int kWarpCols,
          int kRows, int kCols>
struct TensorTile {
  using PanelA = LeftPanel;
  using PanelB = RightPanel;
  using Real = float;
  using Element = ElementType;
  static constexpr int kThreads = kWarpRows * kWarpCols * simt::kWarpThreads;
  static constexpr int kMinBlocks = kTensorThreads / kThreads;
  static constexpr int kTileRows = kWarpRows * kRows, kTileCols = kWarpCols * kCols;
  static constexpr int kStageRuns = PanelA::kAllRuns + PanelB::kAllRuns;
  static constexpr int kFitting = kMostSharedBytes / 16 / kStageRuns;
  static constexpr int kStages = kFitting < kMostStages ? kFitting : kMostStages;
  static constexpr int kRowMmas = kRows / kMmaRows, kColMmas = kCols / kMmaCols;
  // The thread's elements: those of its part of c in each mma.
  using Sums = float[kRowMmas][kColMmas][4];

  // Returns the row of the tile with the elements e = 2 * (i % 2) of mma i / 2, and one more.
  static BRIDGE_DEVICE int row_of(int i) {
    return warp_row() * kRows + i * 8 + simt::thread_index() % simt::kWarpThreads / 4;
  }
  // Returns the column of the tile with element e of mma j.
  static BRIDGE_DEVICE int col_of(int j, int e) {
    return warp_col() * kCols + j * kMmaCols + simt::thread_index() % 4 * 2 + e;
  }

  // Computes the sums of a tile over all terms.
  static BRIDGE_DEVICE void add_all(const TileParams& params, int64_t terms, PanelA& a, PanelB& b,
                                    Sums& sums) {
    simt::Vector16* const shared = simt::shared_array<simt::Vector16, kStages * kStageRuns>();
    const int64_t steps = (terms + kTensorStep - 1) / kTensorStep;
    const auto begin_copies = [&](int64_t step, int stage) {
      if (step < steps) {
        a.copy(shared + stage * kStageRuns);
        b.copy(shared + stage * kStageRuns + PanelA::kAllRuns);
      }
      simt::end_of_copies();
    };
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; ++stage) begin_copies(stage, stage);
    each([&](int i, int j, int e) { sums[i][j][e] = 0; });
    int stage = 0, free = kStages - 1;
    int64_t step = 0;
    for (int64_t leaf = 0; step < steps; ++leaf) {
      constexpr int64_t kLeafSteps = kProductLeaf / kTensorStep;
      const int64_t end = steps - step < kLeafSteps ? steps : step + kLeafSteps;
#pragma unroll 1
      for (; step < end; ++step) {
        simt::wait_for_copies<kStages - 2>();
        simt::sync();
        // All threads have left the stage of the last step by the barrier.
        begin_copies(step + kStages - 1, free);
        add_step(a, b, shared + stage * kStageRuns, sums);
        free = stage;
        stage = stage + 1 < kStages ? stage + 1 : 0;
      }
      end_leaf(params, leaf, step == steps, sums);
    }
  }

  // The warp's place in the tile.
  static BRIDGE_DEVICE int warp_row() {
    return simt::thread_index() / simt::kWarpThreads / kWarpCols;
  }
  static BRIDGE_DEVICE int warp_col() {
    return simt::thread_index() / simt::kWarpThreads % kWarpCols;
  }

  template <class Visit>
  static BRIDGE_DEVICE void each(const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kRowMmas; ++i) {
#pragma unroll
      for (int j = 0; j < kColMmas; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) visit(i, j, e);
      }
    }
  }

  static BRIDGE_DEVICE void add_step(const PanelA& a, const PanelB& b, const simt::Vector16* shared,
                                     Sums& sums) {
#pragma unroll
    for (int p = 0; p < kTensorStep / kMmaTerms; ++p) {
      uint32_t left[kRowMmas][4], right[kColMmas / 2][4];
#pragma unroll
      for (int i = 0; i < kRowMmas; ++i) a.load(shared, i, p, left[i]);
#pragma unroll
      for (int j = 0; j < kColMmas / 2; ++j) b.load(shared + PanelA::kAllRuns, j, p, right[j]);
#pragma unroll
      for (int i = 0; i < kRowMmas; ++i) {
#pragma unroll
        for (int j = 0; j < kColMmas; ++j) {
          const uint32_t own[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
          simt::multiply_add<Element>(left[i], own, sums[i][j]);
        }
      }
    }
  }

  // Returns the thread's first waiting sum of a level; the others are kThreads apart.
  static BRIDGE_DEVICE float* waiting(const TileParams& params, int64_t level) {
    const int64_t place = simt::block_index().x * params.levels + level;
    return static_cast<float*>(params.waiting) + place * (kTileRows * kTileCols) +
           simt::thread_index();
  }

  static BRIDGE_DEVICE void add_waiting(const float* from, Sums& sums) {
    each([&](int i, int j, int e) {
      sums[i][j][e] = from[((i * kColMmas + j) * 4 + e) * kThreads] + sums[i][j][e];
    });
  }

  static BRIDGE_DEVICE void end_leaf(const TileParams& params, int64_t leaf, bool is_last,
                                     Sums& sums) {
    const auto keep = [&](int64_t level) {
      float* const to = waiting(params, level);
      each([&](int i, int j, int e) {
        to[((i * kColMmas + j) * 4 + e) * kThreads] = sums[i][j][e];
        sums[i][j][e] = 0;
      });
    };
    products::end_leaf(
        leaf, is_last, [&](int64_t level) { add_waiting(waiting(params, level), sums); }, keep);
  }
};

}  // namespace bridge::products

#endif  // BRIDGE_PRODUCTS_TENSOR_TILE_CUH_
