// Matrix products on CUDA. A block computes tiles of the result, one after the other: operands pass
// through shared memory, a step of terms at a time, and each thread keeps the sums of some rows and
// columns. Sums of whole subtrees wait in the block's part of the workspace. The order of the sums
// is that of the CPU (docs/numerics.md).
#ifndef BRIDGE_PRODUCTS_PRODUCT_CUH_
#define BRIDGE_PRODUCTS_PRODUCT_CUH_

#include <bridge/bridge.h>
#include <stdint.h>

#include <type_traits>

#include "cuda/simt.h"
#include "cuda/vector.h"
#include "drivers/dtypes.h"
#include "math/convert.h"
#include "math/scalar.h"
#include "products/call.h"

namespace bridge::products {

constexpr int kTileThreads = 256;
constexpr int kStep = 16;  // terms that are in shared memory at once; it divides a leaf

struct TileParams {
  bridge_product call;
  int64_t row_tiles, col_tiles, tiles;  // tiles: of all batches
  int64_t levels;                       // sums that wait, for each element
  void* waiting;
};

// Returns the number of sums of subtrees that may wait: one for each level below the root's.
inline int64_t waiting_levels(int64_t terms) {
  const int64_t leaves = (terms + kProductLeaf - 1) / kProductLeaf;
  int64_t levels = 0;
  while (int64_t{1} << levels < leaves) ++levels;
  return levels;
}

template <class Real>
BRIDGE_DEVICE Real load_element(const char* from, int32_t dtype) {
  if constexpr (sizeof(Real) == sizeof(double)) {
    if (dtype == BRIDGE_FLOAT64) return *reinterpret_cast<const double*>(from);
  }
  if (dtype == BRIDGE_FLOAT32) return *reinterpret_cast<const float*>(from);
  if (dtype == BRIDGE_FLOAT16)
    return simt::widen<Real>(*reinterpret_cast<const math::float16*>(from));
  return simt::widen<Real>(*reinterpret_cast<const math::bfloat16*>(from));
}

template <class Real>
BRIDGE_DEVICE void store_element(char* to, int32_t dtype, Real value) {
  if (dtype == BRIDGE_FLOAT64)
    *reinterpret_cast<double*>(to) = math::round_to<double>(value);
  else if (dtype == BRIDGE_FLOAT32)
    *reinterpret_cast<float*>(to) = math::round_to<float>(value);
  else if (dtype == BRIDGE_FLOAT16)
    *reinterpret_cast<math::float16*>(to) = math::round_to<math::float16>(value);
  else
    *reinterpret_cast<math::bfloat16*>(to) = math::round_to<math::bfloat16>(value);
}

// Adds the sum of a leaf to those that wait for it, with add(level); if it is not the last, the sum
// waits, with keep(level).
template <class Add, class Keep>
BRIDGE_DEVICE void end_leaf(int64_t leaf, bool is_last, const Add& add, const Keep& keep) {
  int64_t level = 0;
  for (; (leaf >> level & 1) != 0; ++level) add(level);
  ++leaf;
  if (!is_last) return keep(level);
  for (++level; leaf >> level != 0; ++level)
    if ((leaf >> level & 1) != 0) add(level);
}

// Visits the block's tiles: visit(batch, row, column) of the first element.
template <class Tile, class Visit>
BRIDGE_DEVICE void each_tile(const TileParams& params, const Visit& visit) {
  const int64_t tiles = params.row_tiles * params.col_tiles;
  for (int64_t unit = simt::block_index().x; unit < params.tiles; unit += simt::block_count().x)
    visit(unit / tiles, unit % tiles / params.col_tiles * Tile::kTileRows,
          unit % params.col_tiles * Tile::kTileCols);
}

// The part of an operand in a tile: kLanes rows of a or columns of b. Each thread moves its
// elements of a step from global memory to registers, and later to shared memory, in which the
// lanes of a term lie side by side.
//
// kVectors promises that runs of 16 bytes, of lanes or of terms, are adjacent, aligned, and in the
// array as a whole or not at all.
template <class Real, int kLanes, bool kVectors, int kTag>
class Panel {
 public:
  static constexpr int kRun = kVectors ? 16 / static_cast<int>(sizeof(Real)) : 1;
  static constexpr int kElements = kLanes * kStep;
  static constexpr int kRuns = (kElements / kRun + kTileThreads - 1) / kTileThreads;
  // Padding spreads the terms of a lane over the banks of shared memory, and keeps runs aligned.
  static constexpr int kWidth = kLanes + 16 / static_cast<int>(sizeof(Real));

  BRIDGE_DEVICE Panel(const bridge_product_array& array, const char* data, int64_t lanes,
                      int64_t terms, int64_t lane_stride, int64_t term_stride)
      : terms_(terms),
        lanes_(static_cast<int>(lanes < kLanes ? lanes : kLanes)),
        dtype_(array.dtype),
        has_adjacent_lanes_(lane_stride == 1) {
    const int64_t bytes = element_bytes(dtype_);
    const int run = simt::thread_index();
    if (has_adjacent_lanes_) {
      constexpr int kRunsOfTerm = kLanes / kRun;
      lane_ = run % kRunsOfTerm * kRun;
      term_ = run / kRunsOfTerm;
      run_bytes_ = term_stride * (kTileThreads / kRunsOfTerm) * bytes;
    } else {
      constexpr int kRunsOfLane = kStep / kRun;
      lane_ = run / kRunsOfLane;
      term_ = run % kRunsOfLane * kRun;
      run_bytes_ = lane_stride * (kTileThreads / kRunsOfLane) * bytes;
    }
    step_bytes_ = term_stride * kStep * bytes;
    at_ = data + (lane_ * lane_stride + term_ * term_stride) * bytes;
  }

  // Reads the next step.
  BRIDGE_DEVICE void read() {
    const int terms = static_cast<int>(terms_ < kStep ? terms_ : kStep);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const bool is_inside = is_in_panel(r) && lane(r) < lanes_ && term(r) < terms;
      const char* const from = at_ + r * run_bytes_;
      if constexpr (kVectors) {
        words_[r] = is_inside ? simt::load16(from) : simt::Vector16{};
      } else {
        values_[r] = is_inside ? load_element<Real>(from, dtype_) : Real(0);
      }
    }
    at_ += step_bytes_;
    terms_ -= kStep;
  }

  BRIDGE_DEVICE void write(Real* shared) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      if (!is_in_panel(r)) continue;
      Real* const to = shared + term(r) * kWidth + lane(r);
      if constexpr (!kVectors) {
        *to = values_[r];
      } else if (has_adjacent_lanes_) {
        simt::store16(to, words_[r]);
      } else {
        Real run[kRun];
        memcpy(run, &words_[r], sizeof run);
#pragma unroll
        for (int i = 0; i < kRun; ++i) to[i * kWidth] = run[i];
      }
    }
  }

 private:
  // The thread's run r of the step: neighbours read neighbouring memory. The runs of a thread are
  // the same number of lanes, or of terms, apart.
  BRIDGE_DEVICE int lane(int r) const {
    return has_adjacent_lanes_ ? lane_ : lane_ + r * (kTileThreads * kRun / kStep);
  }
  BRIDGE_DEVICE int term(int r) const {
    return has_adjacent_lanes_ ? term_ + r * (kTileThreads * kRun / kLanes) : term_;
  }
  static BRIDGE_DEVICE bool is_in_panel(int r) {
    return kElements / kRun % kTileThreads == 0 ||
           simt::thread_index() + r * kTileThreads < kElements / kRun;
  }

  const char* at_;
  int64_t terms_, step_bytes_, run_bytes_;
  int lanes_, lane_, term_;
  int32_t dtype_;
  bool has_adjacent_lanes_;
  simt::Vector16 words_[kVectors ? kRuns : 1];
  Real values_[kVectors ? 1 : kRuns];
};

// kRows x kCols elements for each of 16 x 16 threads. A thread's rows and columns are in runs of 16
// bytes, as far as it has so many, so that neighbours read neighbouring shared memory.
template <class RealType, int kRows, int kCols, bool kVectors>
struct TileKernel {
  using Params = TileParams;
  using Real = RealType;
  static constexpr int kThreads = kTileThreads;
  static constexpr int kMinBlocks = kVectors ? 2 : 1;  // the others would spill registers
  static constexpr int kTileRows = 16 * kRows, kTileCols = 16 * kCols;
  using PanelA = Panel<Real, kTileRows, kVectors, 0>;
  using PanelB = Panel<Real, kTileCols, kVectors, 1>;

  static BRIDGE_DEVICE void run(const Params& params) {
    each_tile<TileKernel>(params, [&](int64_t batch, int64_t row, int64_t col) {
      compute_tile(params, batch, row, col);
    });
  }

 protected:
  template <int kCount>
  static constexpr int kRunOf =
      kCount < 16 / static_cast<int>(sizeof(Real)) ? kCount : 16 / static_cast<int>(sizeof(Real));

  // Returns the row or column of the tile that is the thread's number i of kCount.
  template <int kCount>
  static BRIDGE_DEVICE int lane_of(int thread, int i) {
    constexpr int kRun = kRunOf<kCount>;
    return i / kRun * 16 * kRun + thread * kRun + i % kRun;
  }

  // A warp has 4 x 8 threads of the tile.
  static BRIDGE_DEVICE int thread_row() {
    const int thread = simt::thread_index();
    return thread / 64 * 4 + thread % 32 / 8;
  }
  static BRIDGE_DEVICE int thread_col() {
    const int thread = simt::thread_index();
    return thread / 32 % 2 * 8 + thread % 8;
  }

  template <int kCount>
  static BRIDGE_DEVICE void load_lanes(const Real* term, int thread, Real (&lanes)[kCount]) {
    constexpr int kRun = kRunOf<kCount>;
#pragma unroll
    for (int i = 0; i < kCount; i += kRun) {
      const Real* const from = term + lane_of<kCount>(thread, i);
      if constexpr (kRun * sizeof(Real) == 16) {
        const simt::Vector16 words = simt::load16(from);
        memcpy(&lanes[i], &words, sizeof words);
      } else {
#pragma unroll
        for (int j = 0; j < kRun; ++j) lanes[i + j] = from[j];
      }
    }
  }

  template <bool kSkipsZeros>
  static BRIDGE_DEVICE void add_term(const Real* a, const Real* b, Real (&sums)[kRows][kCols]) {
    Real left[kRows], right[kCols];
    load_lanes<kRows>(a, thread_row(), left);
    load_lanes<kCols>(b, thread_col(), right);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        if (!kSkipsZeros || left[i] != 0) sums[i][j] = math::fma(left[i], right[j], sums[i][j]);
      }
    }
  }

  template <bool kSkipsZeros>
  static BRIDGE_DEVICE void add_step(const Real* a, const Real* b, int64_t terms,
                                     Real (&sums)[kRows][kCols]) {
    if (terms >= kStep) {
#pragma unroll 8
      for (int p = 0; p < kStep; ++p)
        add_term<kSkipsZeros>(a + p * PanelA::kWidth, b + p * PanelB::kWidth, sums);
    } else {
#pragma unroll 1
      for (int p = 0; p < terms; ++p)
        add_term<kSkipsZeros>(a + p * PanelA::kWidth, b + p * PanelB::kWidth, sums);
    }
  }

  static BRIDGE_DEVICE void fill(Real value, Real (&sums)[kRows][kCols]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) sums[i][j] = value;
    }
  }

  // Returns the thread's first waiting sum of a level; the others are kTileThreads apart.
  static BRIDGE_DEVICE Real* waiting(const Params& params, int64_t level) {
    const int64_t place = simt::block_index().x * params.levels + level;
    return static_cast<Real*>(params.waiting) + place * (kTileRows * kTileCols) +
           simt::thread_index();
  }

  static BRIDGE_DEVICE void add_waiting(const Real* from, Real (&sums)[kRows][kCols]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j)
        sums[i][j] = from[(i * kCols + j) * kTileThreads] + sums[i][j];
    }
  }

  static BRIDGE_DEVICE void end_leaf(const TileParams& params, int64_t leaf, bool is_last,
                                     Real (&sums)[kRows][kCols]) {
    const auto keep = [&](int64_t level) {
      Real* const to = waiting(params, level);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kCols; ++j) to[(i * kCols + j) * kTileThreads] = sums[i][j];
      }
      fill(Real(-0.0), sums);
    };
    products::end_leaf(
        leaf, is_last, [&](int64_t level) { add_waiting(waiting(params, level), sums); }, keep);
  }

 private:
  static BRIDGE_DEVICE void compute_tile(const Params& params, int64_t batch, int64_t row,
                                         int64_t col) {
    const bridge_product& call = params.call;
    const auto data_of = [&](const bridge_product_array& array, int64_t r, int64_t c) {
      return static_cast<char*>(array.data) + offset_of(call, array, batch) +
             (r * array.row_stride + c * array.col_stride) * element_bytes(array.dtype);
    };
    Real* const shared_a = simt::shared_array<Real, 2 * kStep * PanelA::kWidth, 0>();
    Real* const shared_b = simt::shared_array<Real, 2 * kStep * PanelB::kWidth, 1>();
    PanelA a(call.a, data_of(call.a, row, 0), call.m - row, call.k, call.a.row_stride,
             call.a.col_stride);
    PanelB b(call.b, data_of(call.b, 0, col), call.n - col, call.k, call.b.col_stride,
             call.b.row_stride);
    Real sums[kRows][kCols];
    fill(call.k == 0 ? Real(0) : Real(-0.0), sums);  // -0 + x is x: the first term is a product
    a.read();
    b.read();
    int64_t leaf = 0;
    int buffer = 0;
    for (int64_t first = 0; first < call.k; first += kStep, buffer ^= 1) {
      Real* const step_a = shared_a + buffer * kStep * PanelA::kWidth;
      Real* const step_b = shared_b + buffer * kStep * PanelB::kWidth;
      a.write(step_a);
      b.write(step_b);
      // The other buffer is free for the next step: all threads have left it by the last barrier.
      simt::sync();
      const int64_t rest = call.k - first;
      if (rest > kStep) {
        a.read();
        b.read();
      }
      if (call.skips_zeros != 0)
        add_step<true>(step_a, step_b, rest, sums);
      else
        add_step<false>(step_a, step_b, rest, sums);
      const bool is_last = rest <= kStep;
      if (!is_last && (first + kStep) % kProductLeaf != 0) continue;
      end_leaf(params, leaf++, is_last, sums);
    }
    write(call, data_of(call.c, row, col),
          call.bias.data == nullptr ? nullptr : data_of(call.bias, 0, col), call.m - row,
          call.n - col, sums);
    simt::sync();  // the next tile writes the buffers
  }

  static BRIDGE_DEVICE void write(const bridge_product& call, char* c, const char* bias,
                                  int64_t rows, int64_t cols, const Real (&sums)[kRows][kCols]) {
    const int64_t bytes = element_bytes(call.c.dtype);
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const int col = lane_of<kCols>(thread_col(), j);
      if (col >= cols) continue;
      const int64_t bias_bytes = element_bytes(call.bias.dtype);
      const Real added =
          bias == nullptr
              ? Real(0)
              : load_element<Real>(bias + col * call.bias.col_stride * bias_bytes, call.bias.dtype);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = lane_of<kRows>(thread_row(), i);
        if (row >= rows) continue;
        Real sum = sums[i][j];
        if (call.skips_zeros != 0) sum = sum + Real(0);  // -0 becomes 0
        if (bias != nullptr) sum = sum + added;
        store_element(c + (row * call.c.row_stride + col * call.c.col_stride) * bytes, call.c.dtype,
                      sum);
      }
    }
  }
};

}  // namespace bridge::products

#endif  // BRIDGE_PRODUCTS_PRODUCT_CUH_
