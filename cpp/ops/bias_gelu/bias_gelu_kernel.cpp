// bias_gelu on one block, compiled once for each instruction set into a namespace of its own.
// Everything but the table is internal to this file, and nothing of the standard library is used:
// an inline function compiled here for AVX-512 must never be the copy that other code is linked to.
#include "ops/bias_gelu/bias_gelu_kernel.h"

#include "cpu/tile.h"
#include "math/gelu.h"
#include "ops/bias_gelu/bias_gelu.h"
#include "walks/columns/block_tiles.h"
#include "walks/columns/column_sums.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using math::GeluForm;

// ---- Every operand of dtype T: one loop from memory to memory. ----

// A run of columns of one row.
template <class T, int kFactors, bool kSums>
struct Segment {
  using Real = real_of<T>;
  const T* input;
  const T* factor[kFactors + 1];
  T* output;
  const Real* input_row;
  const Real* factor_row[kFactors + 1];
  Real* sums;

  inline __attribute__((always_inline)) Segment from(int64_t col) const {
    Segment rest = *this;
    rest.input += col;
    rest.output += col;
    rest.input_row += col;
    if constexpr (kSums) rest.sums += col;
    for (int i = 0; i < kFactors; ++i) {
      rest.factor[i] += col;
      rest.factor_row[i] += col;
    }
    return rest;
  }
};

// count is a multiple of kStep, so that the loop needs no remainder.
template <class Precision, GeluForm kForm, int kOrder, class T, int kFactors, bool kSums>
inline __attribute__((always_inline)) void compute(const Segment<T, kFactors, kSums>& segment,
                                                   int64_t count) {
  using Real = real_of<T>;
  const T* const input = segment.input;
  const T* const factor0 = segment.factor[0];
  const T* const factor1 = segment.factor[kFactors > 1];
  const Real* const input_row = segment.input_row;
  const Real* const row0 = segment.factor_row[0];
  const Real* const row1 = segment.factor_row[kFactors > 1];
  T* const output = segment.output;
  Real* const sums = segment.sums;
  if (count % kStep != 0) __builtin_unreachable();
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    Real value = math::gelu<Precision, kForm, kOrder>(to_real<Real>(input[i]) + input_row[i]);
    if constexpr (kFactors > 0) value = value * (to_real<Real>(factor0[i]) + row0[i]);
    if constexpr (kFactors > 1) value = value * (to_real<Real>(factor1[i]) + row1[i]);
    if constexpr (kSums) sums[i] = sums[i] + value;
    output[i] = math::round_to<T>(value);
  }
}

// The last columns, fewer than a step, through buffers of a whole one: no loop for the remainder.
template <class Precision, GeluForm kForm, int kOrder, class T, int kFactors, bool kSums>
void compute_tail(const Segment<T, kFactors, kSums>& segment, int64_t cols) {
  T input[kStep] = {}, factor[kFactors + 1][kStep] = {}, output[kStep];
  Segment<T, kFactors, kSums> padded = segment;
  copy(input, segment.input, cols);
  padded.input = input;
  for (int i = 0; i < kFactors; ++i) {
    copy(factor[i], segment.factor[i], cols);
    padded.factor[i] = factor[i];
  }
  padded.output = output;
  compute<Precision, kForm, kOrder>(padded, int64_t{kStep});
  copy(segment.output, output, cols);
}

// Asks for the elements that follow those of the segment by so many bytes, where the processor's
// own prefetching, which stops at the end of a page, does not.
template <class T, int kFactors, bool kSums>
void prefetch(const Segment<T, kFactors, kSums>& segment, const int64_t* distances, int64_t cols) {
  for (int64_t col = 0; col < cols; col += 64 / sizeof(T)) {
    __builtin_prefetch(reinterpret_cast<const char*>(segment.input + col) + distances[0]);
    for (int i = 0; i < kFactors; ++i)
      __builtin_prefetch(reinterpret_cast<const char*>(segment.factor[i] + col) + distances[1 + i]);
  }
}

template <class Precision, GeluForm kForm, int kOrder, class T, int kFactors, bool kSums>
void fused(const BiasGeluBlock& block) {
  using Real = real_of<T>;
  constexpr int64_t kWidth = kFusedBytes / sizeof(Real);
  constexpr int64_t kPart = 1024 / sizeof(T);
  alignas(64) Real rows[1 + kFactors][kWidth];
  alignas(64) T unwanted[kWidth];
  typename SumsIf<kSums, ColumnSums<Real, kWidth, kBlockChunks>>::type tree;
  // With column sums a tile of columns is followed through all rows; else a few rows at a time, so
  // that memory is walked nearly in order.
  const int64_t strip = kSums ? block.rows : kChunkRows;
  for (int64_t top = 0; top < block.rows; top += strip) {
    const int64_t bottom = smaller(top + strip, block.rows);
    for (int64_t col = 0; col < block.cols; col += kWidth) {
      const int64_t cols = smaller(kWidth, block.cols - col);
      const int64_t body = cols / kStep * kStep;
      fill_row(block, block.input.row, col, cols, 1, rows[0]);
      for (int i = 0; i < kFactors; ++i)
        fill_row(block, block.factor[i].row, col, cols, 1, rows[1 + i]);
      if constexpr (kSums) tree.begin(cols);
      for (int64_t row = top; row < bottom; ++row) {
        auto at = [&](const BlockArray& array) {
          return reinterpret_cast<T*>(array.data + row * array.row_bytes) + col;
        };
        // How far it is to the next segment: the next row, or the next tile of columns.
        auto distance = [&](const BlockArray& array) {
          return row + 1 < bottom ? array.row_bytes
                                  : (top - row) * array.row_bytes + int64_t{kWidth * sizeof(T)};
        };
        Segment<T, kFactors, kSums> segment{};
        int64_t distances[1 + kFactors];
        segment.input = at(block.input.full);
        segment.input_row = rows[0];
        distances[0] = distance(block.input.full);
        for (int i = 0; i < kFactors; ++i) {
          segment.factor[i] = at(block.factor[i].full);
          segment.factor_row[i] = rows[1 + i];
          distances[1 + i] = distance(block.factor[i].full);
        }
        segment.output = block.output.data != nullptr ? at(block.output) : unwanted;
        if constexpr (kSums) segment.sums = tree.lane();
        for (int64_t begin = 0; begin < body; begin += kPart) {
          const Segment<T, kFactors, kSums> part = segment.from(begin);
          const int64_t part_cols = smaller(kPart, body - begin);
          if (block.prefetch) prefetch(part, distances, part_cols);
          compute<Precision, kForm, kOrder>(part, part_cols);
        }
        if (cols != body) compute_tail<Precision, kForm, kOrder>(segment.from(body), cols - body);
        if constexpr (kSums) tree.added(1);
      }
      if constexpr (kSums) write_sums(block, col, cols, tree.end());
    }
  }
}

// ---- Any operands: tiles in the arithmetic type that stay in the first-level cache. ----

template <class Precision, GeluForm kForm, int kOrder>
void gelu_tile(typename Precision::real* tile, int64_t count) {
  if (count % kStep != 0) __builtin_unreachable();
  for (int64_t i = 0; i < count; ++i) tile[i] = math::gelu<Precision, kForm, kOrder>(tile[i]);
}

template <class Precision, GeluForm kForm>
void gelu_tile(typename Precision::real* tile, int64_t count, int order) {
  switch (order) {
    case 0:
      return gelu_tile<Precision, kForm, 0>(tile, count);
    case 1:
      return gelu_tile<Precision, kForm, 1>(tile, count);
    case 2:
      return gelu_tile<Precision, kForm, 2>(tile, count);
    default:
      for (int64_t i = 0; i < count; ++i)
        tile[i] = math::gelu_high_order<Precision, kForm>(tile[i], order);
  }
}

template <class Precision, GeluForm kForm>
void tiled(const BiasGeluBlock& block) {
  using Real = typename Precision::real;
  constexpr int64_t kWidth = kTiledBytes / sizeof(Real);
  alignas(64) Real rows_of[1 + BRIDGE_MAX_FACTORS][kWidth];
  alignas(64) Real value[kWidth], factor[kWidth];
  ColumnSums<Real, kWidth, kBlockChunks> tree;
  const bool sums = block.wants_sums();
  for (int64_t col = 0; col < block.cols; col += kWidth) {
    const int64_t cols = smaller(kWidth, block.cols - col);
    const int64_t most_rows = smaller(kWidth / cols, block.rows);
    fill_row(block, block.input.row, col, cols, most_rows, rows_of[0]);
    for (int i = 0; i < block.factors; ++i)
      fill_row(block, block.factor[i].row, col, cols, most_rows, rows_of[1 + i]);
    if (sums) tree.begin(cols);
    for (int64_t row = 0; row < block.rows; row += most_rows) {
      const int64_t rows = smaller(most_rows, block.rows - row);
      const int64_t count = round_up(rows * cols);
      load_tile(block.input.full, row, col, rows, cols, value);
      pad(value, rows * cols);
      if (block.input.row.data != nullptr) add_to(value, rows_of[0], count);
      gelu_tile<Precision, kForm>(value, count, block.order);
      for (int i = 0; i < block.factors; ++i) {
        const BlockPair& pair = block.factor[i];
        if (pair.full.data == nullptr) {
          multiply_by(value, rows_of[1 + i], count);
          continue;
        }
        load_tile(pair.full, row, col, rows, cols, factor);
        pad(factor, rows * cols);
        if (pair.row.data != nullptr) add_to(factor, rows_of[1 + i], count);
        multiply_by(value, factor, count);
      }
      if (block.output.data != nullptr) store_tile(block.output, row, col, rows, cols, value);
      if (sums) tree.add_rows(value, rows, cols);
    }
    if (sums) write_sums(block, col, cols, tree.end());
  }
}

template <class Precision, class T, GeluForm kForm>
constexpr void add_fused(BiasGeluKernels& kernels, bridge_dtype dtype) {
  constexpr int form = static_cast<int>(kForm);
  kernels.fused[kForward][dtype][form] = fused<Precision, kForm, 0, T, 0, false>;
  kernels.fused[kFirst][dtype][form] = fused<Precision, kForm, 1, T, 1, false>;
  kernels.fused[kFirstSums][dtype][form] = fused<Precision, kForm, 1, T, 1, true>;
  kernels.fused[kSecond][dtype][form] = fused<Precision, kForm, 2, T, 2, false>;
  kernels.fused[kSecondSums][dtype][form] = fused<Precision, kForm, 2, T, 2, true>;
}

template <GeluForm kForm>
constexpr void add_form(BiasGeluKernels& kernels) {
  constexpr int form = static_cast<int>(kForm);
  add_fused<math::SingleForBfloat16, math::bfloat16, kForm>(kernels, BRIDGE_BFLOAT16);
  add_fused<math::Single, float, kForm>(kernels, BRIDGE_FLOAT32);
  add_fused<math::Double, double, kForm>(kernels, BRIDGE_FLOAT64);
  kernels.tiled[static_cast<int>(Arithmetic::single_for_float16)][form] =
      tiled<math::SingleForFloat16, kForm>;
  kernels.tiled[static_cast<int>(Arithmetic::single_for_bfloat16)][form] =
      tiled<math::SingleForBfloat16, kForm>;
  kernels.tiled[static_cast<int>(Arithmetic::single)][form] = tiled<math::Single, kForm>;
  kernels.tiled[static_cast<int>(Arithmetic::double_)][form] = tiled<math::Double, kForm>;
}

static_assert(static_cast<int>(GeluForm::tanh) == BRIDGE_GELU_TANH &&
                  static_cast<int>(GeluForm::erf) == BRIDGE_GELU_ERF &&
                  static_cast<int>(GeluForm::sigmoid) == BRIDGE_GELU_SIGMOID,
              "the forms are numbered as at the border");

constexpr BiasGeluKernels make_kernels() {
  BiasGeluKernels kernels{};
  add_form<GeluForm::tanh>(kernels);
  add_form<GeluForm::erf>(kernels);
  add_form<GeluForm::sigmoid>(kernels);
  kernels.add_nodes[0] = add_nodes<float>;
  kernels.add_nodes[1] = add_nodes<double>;
  return kernels;
}

}  // namespace

constexpr BiasGeluKernels bias_gelu_kernels = make_kernels();

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
