// bias_dropout_add on one block, compiled once for each instruction set into a namespace of its
// own. Everything but the table is internal to this file, and nothing of the standard library is
// used: an inline function compiled here for AVX-512 must never be the copy that other code is
// linked to.
#include "ops/bias_dropout_add/bias_dropout_add_kernel.h"

#include "cpu/random_words.h"
#include "cpu/tile.h"
#include "walks/columns/block_tiles.h"
#include "walks/columns/column_sums.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// +0 where an element is dropped, whatever the input holds. A choice, not a product: 0 times a NaN
// would be one.
template <Keep kKeep, class Real>
inline __attribute__((always_inline)) Real keep_or_drop(Real value, Real factor, uint32_t word,
                                                        uint32_t threshold) {
  if constexpr (kKeep == Keep::all) return value;
  if constexpr (kKeep == Keep::none) return Real(0);
  return word >= threshold ? value * factor : Real(0);
}

// ---- Every full operand of dtype T: one loop from memory to memory. ----

// A run of columns of one row.
template <class T>
struct Segment {
  using Real = real_of<T>;
  const T* input;
  const T* residual;
  T* output;
  const Real* row;
  Real* sums;
};

// count is a multiple of kStep, so that the loop needs no remainder.
template <Keep kKeep, bool kResidual, bool kSums, class T>
inline __attribute__((always_inline)) void compute(const Segment<T>& segment,
                                                   const BiasDropoutAddBlock& block,
                                                   const uint32_t* words, int64_t count) {
  using Real = real_of<T>;
  const T* const input = segment.input;
  const T* const residual = segment.residual;
  const Real* const row = segment.row;
  Real* const sums = segment.sums;
  T* const output = segment.output;
  const Real factor = static_cast<Real>(block.factor);
  const uint32_t threshold = block.threshold;
  if (count % kStep != 0) __builtin_unreachable();
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = kKeep == Keep::some ? words[i] : 0;
    Real value = keep_or_drop<kKeep>(to_real<Real>(input[i]) + row[i], factor, word, threshold);
    if constexpr (kResidual) value = to_real<Real>(residual[i]) + value;
    if constexpr (kSums) sums[i] = sums[i] + value;
    output[i] = math::round_to<T>(value);
  }
}

// The last columns, fewer than a step, through buffers of a whole one: no loop for the remainder.
template <Keep kKeep, bool kResidual, bool kSums, class T>
void compute_tail(const Segment<T>& segment, const BiasDropoutAddBlock& block,
                  const uint32_t* words, int64_t cols) {
  T input[kStep] = {}, residual[kStep] = {}, output[kStep];
  Segment<T> padded = segment;
  copy(input, segment.input, cols);
  padded.input = input;
  if constexpr (kResidual) copy(residual, segment.residual, cols);
  padded.residual = residual;
  padded.output = output;
  compute<kKeep, kResidual, kSums>(padded, block, words, int64_t{kStep});
  copy(segment.output, output, cols);
}

// Asks for the elements that follow by so many bytes, where the processor's own prefetching, which
// stops at the end of a page, does not.
template <class T>
void prefetch(const T* data, int64_t distance, int64_t cols) {
  for (int64_t col = 0; col < cols; col += 64 / sizeof(T))
    __builtin_prefetch(reinterpret_cast<const char*>(data + col) + distance);
}

template <class T, Keep kKeep, bool kResidual, bool kSums>
void fused(const BiasDropoutAddBlock& block) {
  using Real = real_of<T>;
  constexpr int64_t kWidth = kFusedBytes / sizeof(Real);
  constexpr int64_t kPart = 1024 / sizeof(T);
  static_assert(kPart <= RandomWords::kMost);
  alignas(64) Real row_tile[kWidth];
  alignas(64) T unwanted[kWidth];
  typename SumsIf<kSums, ColumnSums<Real, kWidth, kBlockChunks>>::type tree;
  RandomWords random;
  if constexpr (kKeep == Keep::some) random.begin(block.seed, block.offset);
  const bool rows_go_on = block.index_step == static_cast<uint64_t>(block.cols);
  // With column sums a tile of columns is followed through all rows; else a few rows at a time, so
  // that memory is walked nearly in order.
  const int64_t strip = kSums ? block.rows : kChunkRows;
  for (int64_t top = 0; top < block.rows; top += strip) {
    const int64_t bottom = smaller(top + strip, block.rows);
    for (int64_t col = 0; col < block.cols; col += kWidth) {
      const int64_t cols = smaller(kWidth, block.cols - col);
      const int64_t body = cols / kStep * kStep;
      fill_row(block, block.input.row, col, cols, 1, row_tile);
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
        Real* sums = nullptr;
        if constexpr (kSums) sums = tree.lane();
        const T* const input = at(block.input.full);
        const T* const residual = kResidual ? at(block.residual) : nullptr;
        T* const output = block.output.data != nullptr ? at(block.output) : unwanted;
        const uint64_t index = block.index + static_cast<uint64_t>(row) * block.index_step +
                               static_cast<uint64_t>(col);
        // Elements of the block that follow one another from this row's segment on.
        const int64_t run = rows_go_on && cols == block.cols ? (block.rows - row) * cols : cols;
        auto segment_from = [&](int64_t begin) {
          return Segment<T>{input + begin, kResidual ? residual + begin : nullptr, output + begin,
                            row_tile + begin, kSums ? sums + begin : nullptr};
        };
        auto words_from = [&](int64_t begin, int64_t count) -> const uint32_t* {
          if constexpr (kKeep != Keep::some) return nullptr;
          return random.at(index + static_cast<uint64_t>(begin), count, run - begin);
        };
        for (int64_t begin = 0; begin < body; begin += kPart) {
          const int64_t part = smaller(kPart, body - begin);
          if (block.prefetch) {
            prefetch(input + begin, distance(block.input.full), part);
            if constexpr (kResidual) prefetch(residual + begin, distance(block.residual), part);
          }
          compute<kKeep, kResidual, kSums>(segment_from(begin), block, words_from(begin, part),
                                           part);
        }
        if (cols != body)
          compute_tail<kKeep, kResidual, kSums>(segment_from(body), block,
                                                words_from(body, cols - body), cols - body);
        if constexpr (kSums) tree.added(1);
      }
      if constexpr (kSums) write_sums(block, col, cols, tree.end());
    }
  }
}

// ---- Any operands: tiles in the arithmetic type that stay in the first-level cache. ----

template <class Real>
void drop(Real* tile, const uint32_t* words, Real factor, uint32_t threshold, int64_t count) {
  if (count % kStep != 0) __builtin_unreachable();
  for (int64_t i = 0; i < count; ++i)
    tile[i] = keep_or_drop<Keep::some>(tile[i], factor, words[i], threshold);
}

// The words of rows that stand side by side in a tile but apart in the array that is counted in.
inline void gather_words(RandomWords& random, uint64_t index, uint64_t index_step, int64_t rows,
                         int64_t cols, uint32_t* words) {
  for (int64_t row = 0; row < rows; ++row)
    copy(words + row * cols, random.at(index + static_cast<uint64_t>(row) * index_step, cols, cols),
         cols);
}

template <class Real, Keep kKeep>
void tiled(const BiasDropoutAddBlock& block) {
  constexpr int64_t kWidth = kTiledBytes / sizeof(Real);
  static_assert(kWidth <= RandomWords::kMost);
  alignas(64) Real row_tile[kWidth], value[kWidth], residual[kWidth];
  alignas(64) uint32_t gathered[kWidth] = {};
  ColumnSums<Real, kWidth, kBlockChunks> tree;
  RandomWords random;
  if constexpr (kKeep == Keep::some) random.begin(block.seed, block.offset);
  const bool rows_go_on = block.index_step == static_cast<uint64_t>(block.cols);
  const Real factor = static_cast<Real>(block.factor);
  const bool sums = block.wants_sums();
  for (int64_t col = 0; col < block.cols; col += kWidth) {
    const int64_t cols = smaller(kWidth, block.cols - col);
    const int64_t most_rows = smaller(kWidth / cols, block.rows);
    fill_row(block, block.input.row, col, cols, most_rows, row_tile);
    if (sums) tree.begin(cols);
    for (int64_t row = 0; row < block.rows; row += most_rows) {
      const int64_t rows = smaller(most_rows, block.rows - row);
      const int64_t count = round_up(rows * cols);
      if constexpr (kKeep == Keep::none) {
        fill(value, count, Real(0));
      } else {
        load_tile(block.input.full, row, col, rows, cols, value);
        pad(value, rows * cols);
        if (block.input.row.data != nullptr) add_to(value, row_tile, count);
      }
      if constexpr (kKeep == Keep::some) {
        const uint64_t index = block.index + static_cast<uint64_t>(row) * block.index_step +
                               static_cast<uint64_t>(col);
        const uint32_t* words = gathered;
        if (rows == 1)
          words = random.at(index, cols, block.cols - col);
        else if (rows_go_on && cols == block.cols)
          words = random.at(index, rows * cols, (block.rows - row) * cols);
        else
          gather_words(random, index, block.index_step, rows, cols, gathered);
        drop(value, words, factor, block.threshold, count);
      }
      if (block.residual.data != nullptr) {
        load_tile(block.residual, row, col, rows, cols, residual);
        pad(residual, rows * cols);
        add_to(value, residual, count);
      }
      if (block.output.data != nullptr) store_tile(block.output, row, col, rows, cols, value);
      if (sums) tree.add_rows(value, rows, cols);
    }
    if (sums) write_sums(block, col, cols, tree.end());
  }
}

template <class T, Keep kKeep>
constexpr void add_fused(BiasDropoutAddKernels& kernels, bridge_dtype dtype) {
  constexpr int keep = static_cast<int>(kKeep);
  kernels.plain[dtype][keep] = fused<T, kKeep, false, false>;
  kernels.residual[dtype][keep] = fused<T, kKeep, true, false>;
  kernels.sums[dtype][keep] = fused<T, kKeep, false, true>;
}

template <Keep kKeep>
constexpr void add_keep(BiasDropoutAddKernels& kernels) {
  if constexpr (kKeep != Keep::none) {
    add_fused<math::bfloat16, kKeep>(kernels, BRIDGE_BFLOAT16);
    add_fused<float, kKeep>(kernels, BRIDGE_FLOAT32);
    add_fused<double, kKeep>(kernels, BRIDGE_FLOAT64);
  }
  kernels.tiled[0][static_cast<int>(kKeep)] = tiled<float, kKeep>;
  kernels.tiled[1][static_cast<int>(kKeep)] = tiled<double, kKeep>;
}

constexpr BiasDropoutAddKernels make_kernels() {
  BiasDropoutAddKernels kernels{};
  add_keep<Keep::all>(kernels);
  add_keep<Keep::some>(kernels);
  add_keep<Keep::none>(kernels);
  kernels.add_nodes[0] = add_nodes<float>;
  kernels.add_nodes[1] = add_nodes<double>;
  return kernels;
}

}  // namespace

constexpr BiasDropoutAddKernels bias_dropout_add_kernels = make_kernels();

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
