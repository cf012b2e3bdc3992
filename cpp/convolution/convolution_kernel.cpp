// Convolutions on the CPU as products of patches, compiled once for each instruction set. Patches
// are packed as panels and never stored; the sums are those of products/tile_sum.h.
#include "convolution/channelwise.h"
#include "convolution/kernels.h"
#include "convolution/patches.h"
#include "convolution/planes.h"
#include "convolution/store.h"
#include "products/tile_sum.h"
#include "tiles/memory_parts.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

constexpr int64_t kRowsAtOnce = 8 * kTileRows;  // of a packed block of a, which stays in a cache

template <class Real>
class Convolution {
 public:
  static constexpr int kCols = Tile<Real, 1>::kCols, kSize = Tile<Real, 1>::kSize;

  struct Memory {
    Real *a, *b, *low, *high;
    int64_t levels;

    Memory(MemoryParts& parts, const Problem& problem, int64_t rows, int64_t cols) {
      const int64_t deep = smaller(problem.term_count, kDeep);
      const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
      const int64_t col_tiles = (cols + kCols - 1) / kCols;
      levels = high_levels(problem.term_count);
      // Packing may write a vector behind a panel.
      a = parts.take<Real>(deep * smaller(rows, kRowsAtOnce) + kLanes<Real>);
      b = parts.take<Real>(deep * (rows <= kRowsAtOnce ? 1 : col_tiles) * kCols + kLanes<Real>);
      low = parts.take<Real>((kLowLevels + 1) * kSize);
      high = parts.take<Real>(row_tiles * col_tiles * levels * kSize);
    }
  };

  static size_t scratch_bytes(const Problem& problem, int64_t rows, int64_t cols) {
    MemoryParts parts(nullptr);
    const Memory memory(parts, problem, rows, cols);
    return parts.bytes_from_null();
  }

  static void run(const Problem& problem, const Part& part, void* scratch) {
    MemoryParts parts(scratch);
    const Memory memory(parts, problem, part.rows, part.cols);
    Convolution(problem, part, memory).run();
  }

 private:
  Convolution(const Problem& problem, const Part& part, const Memory& memory)
      : problem_(problem), part_(part), memory_(memory) {}

  void run() {
    const int64_t all = problem_.term_count;
    if (all == 0) return write_empty();
    const bool is_flat = part_.rows <= kRowsAtOnce;  // then no panel of b is used twice
    for (int64_t first = 0; first < all; first += kDeep) {
      const int64_t terms = smaller(all - first, kDeep);
      if (!is_flat)
        for (int64_t col = 0; col < part_.cols; col += kCols)
          pack_right(col, first, terms, memory_.b + col * terms);
      for (int64_t row = 0; row < part_.rows; row += kRowsAtOnce) {
        const int64_t rows = smaller(part_.rows - row, kRowsAtOnce);
        for (int64_t i = 0; i < rows; i += kTileRows) {
          const int64_t count = smaller(rows - i, kTileRows);
          pack_view<kTileRows>(problem_.a, part_.row + row + i, count, first, terms, count,
                               memory_.a + i * terms);
        }
        for (int64_t col = 0; col < part_.cols; col += kCols) {
          const Real* const right = memory_.b + (is_flat ? 0 : col * terms);
          if (is_flat) pack_right(col, first, terms, memory_.b);
          for (int64_t i = 0; i < rows; i += kTileRows)
            sum_tile(row, i, smaller(rows - i, kTileRows), col, first, terms, right);
        }
      }
    }
  }

  void pack_right(int64_t col, int64_t first, int64_t terms, Real* to) {
    pack_view<kCols>(problem_.b, part_.col + col, smaller(part_.cols - col, kCols), first, terms,
                     kCols, to);
  }

  void sum_tile(int64_t row, int64_t i, int64_t rows, int64_t col, int64_t first, int64_t terms,
                const Real* right) {
    const int64_t col_tiles = (part_.cols + kCols - 1) / kCols;
    const int64_t tile = (row + i) / kTileRows * col_tiles + col / kCols;
    const bool is_last = first + terms == problem_.term_count;
    sum_of<Real>(rows, std::make_integer_sequence<int, kTileRows>{})(
        memory_.a + i * terms, right, nullptr, terms, first / kProductLeaf, is_last, memory_.low,
        memory_.high + tile * memory_.levels * kSize);
    if (is_last) write(row + i, rows, col, smaller(part_.cols - col, kCols));
  }

  // Rounds the sums of a tile into the result.
  void write(int64_t row, int64_t rows, int64_t col, int64_t cols) {
    Real bias[kCols > kTileRows ? kCols : kTileRows];
    const bool has_bias = problem_.bias != nullptr, is_of_rows = problem_.has_row_bias;
    if (has_bias)
      load_bias(problem_, is_of_rows ? part_.row + row : part_.col + col, is_of_rows ? rows : cols,
                bias);
    const int64_t bytes = element_bytes(problem_.c_dtype);
    Cursor at_row(problem_.rows, part_.row + row);
    for (int64_t i = 0; i < rows; ++i, at_row.advance(1)) {
      Real* const sums = memory_.low + i * kCols;
      if (has_bias && is_of_rows)
        for (int64_t j = 0; j < cols; ++j) sums[j] = sums[j] + bias[i];
      else if (has_bias)
        add_to(sums, bias, cols);
      Cursor at_col(problem_.cols, part_.col + col);
      for (int64_t j = 0; j < cols;) {
        const int64_t run = smaller(cols - j, at_col.rest());
        store_line(problem_.c_dtype, problem_.c + (at_row.offset + at_col.offset) * bytes,
                   problem_.cols.stride[kLast], sums + j, run);
        at_col.advance(run);
        j += run;
      }
    }
  }

  // A sum of no terms is 0.
  void write_empty() {
    for (int64_t row = 0; row < part_.rows; row += kTileRows) {
      for (int64_t col = 0; col < part_.cols; col += kCols) {
        fill(memory_.low, kSize, Real(0));
        write(row, smaller(part_.rows - row, kTileRows), col, smaller(part_.cols - col, kCols));
      }
    }
  }

  const Problem& problem_;
  const Part& part_;
  const Memory& memory_;
};

}  // namespace

template <class Real>
constexpr convolution::Kernels kKernels = {
    kTileRows,
    Convolution<Real>::kCols,
    Convolution<Real>::scratch_bytes,
    Convolution<Real>::run,
    Channelwise<Real>::kBlock,
    Channelwise<Real>::scratch_bytes,
    Channelwise<Real>::run,
    PlaneSums<Real>::scratch_bytes,
    PlaneSums<Real>::run,
};

constexpr convolution::Table convolution_tables = {{kKernels<float>, kKernels<double>}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
