// Matrix products on the CPU, compiled once for each instruction set. The bits of a result depend
// on the order of the sum in Tile::sum, and on nothing else here.
#include <utility>

#include "drivers/dtypes.h"
#include "products/across.h"
#include "products/packing.h"
#include "products/product.h"
#include "products/strips.h"
#include "products/tile_size.h"
#include "products/tile_sum.h"
#include "tiles/memory_parts.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using products::kDeep;
using products::kProductLeaf;
using products::Region;

constexpr int64_t kRowsAtOnce = 8 * kTileRows;  // of a packed block of a, which stays in a cache

template <class Real>
class Product {
 public:
  static constexpr int kCols = Tile<Real, 1>::kCols, kSize = Tile<Real, 1>::kSize;

  // The rows of one block of a: then no panel of b is used twice, and one is packed at a time.
  static bool has_few_rows(int64_t rows) { return rows <= kRowsAtOnce; }

  // Rows that read b as it lies, by strips.h.
  static bool has_strips(const bridge_product& call) {
    return call.m <= kMostStripRows && call.b.col_stride == 1 && call.k > 0;
  }

  // Rows that read b as it lies, by across.h.
  static bool is_across(const bridge_product& call) {
    return call.m <= kMostRowsAcross && call.b.row_stride == 1 && call.skips_zeros == 0 &&
           !has_strips(call);
  }

  struct Memory {
    Real *a, *b, *low, *high, *left = nullptr, *levels = nullptr;
    LeafZeros* zeros = nullptr;  // of the leaves of each tile of a's block
    int64_t high_levels;

    Memory(MemoryParts& parts, const bridge_product& call, int64_t rows, int64_t cols) {
      const int64_t deep = call.k < kDeep ? call.k : kDeep;
      const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
      const int64_t col_tiles = (cols + kCols - 1) / kCols;
      high_levels = BRIDGE_ISA_NAMESPACE::high_levels(call.k);
      // Packing may write a vector behind a panel.
      a = parts.take<Real>(deep * smaller(rows, kRowsAtOnce) + kLanes<Real>);
      b = parts.take<Real>(deep * (has_few_rows(rows) ? 1 : col_tiles) * kCols + kLanes<Real>);
      low = parts.take<Real>((kLowLevels + 1) * kSize);
      high = parts.take<Real>(row_tiles * col_tiles * high_levels * kSize);
      if (call.skips_zeros != 0)
        zeros = parts.take<LeafZeros>(leaves_of(deep) * (kRowsAtOnce / kTileRows));
      if (!has_strips(call) && !is_across(call)) return;
      const int64_t levels_of_all = log2_of(leaves_of(call.k)) + 2;
      left = parts.take<Real>(call.k * rows + kLanes<Real>);
      levels = parts.take<Real>(levels_of_all * rows *
                                (has_strips(call) ? strip_cols<Real>(rows) : kCols));
    }
  };

  static size_t scratch_bytes(const bridge_product& call, int64_t rows, int64_t cols) {
    MemoryParts parts(nullptr);
    const Memory memory(parts, call, rows, cols);
    return parts.bytes_from_null();
  }

  static void run(const Region& region, void* scratch) {
    MemoryParts parts(scratch);
    const Memory memory(parts, *region.call, region.rows, region.cols);
    Product(region, memory).run();
  }

 private:
  Product(const Region& region, const Memory& memory)
      : region_(region), call_(*region.call), memory_(memory) {}

  void run() {
    if (call_.k == 0) return write_empty();
    const int64_t done = has_strips(call_) ? run_strips() : is_across(call_) ? run_across() : 0;
    if (done == region_.cols) return;
    const bool is_flat = has_few_rows(region_.rows);
    for (int64_t first = 0; first < call_.k; first += kDeep) {
      const int64_t terms = smaller(call_.k - first, kDeep);
      if (!is_flat)
        for (int64_t col = done; col < region_.cols; col += kCols)
          pack_right(col, first, terms, memory_.b + col * terms);
      for (int64_t row = 0; row < region_.rows; row += kRowsAtOnce) {
        const int64_t rows = smaller(region_.rows - row, kRowsAtOnce);
        pack_left(row, rows, first, terms);
        for (int64_t col = done; col < region_.cols; col += kCols) {
          const Real* const right = memory_.b + (is_flat ? 0 : col * terms);
          if (is_flat) pack_right(col, first, terms, memory_.b);
          for (int64_t i = 0; i < rows; i += kTileRows)
            sum_tile(row, i, smaller(rows - i, kTileRows), col, first, terms, right);
        }
      }
    }
  }

  // Computes the columns of whole vectors, and returns their number.
  int64_t run_strips() {
    const int64_t all = region_.cols / kLanes<Real> * kLanes<Real>, rows = region_.rows;
    pack_all_left();
    const int64_t most = strip_cols<Real>(rows);
    for (int64_t col = 0; col < all; col += most) {
      const int64_t cols = smaller(all - col, most);
      const Real* sums = of_dtype([&]<class T>(T) {
        return of_rows([&](auto count) {
          return strip<Real, T, decltype(count)::value>(
              memory_.left, reinterpret_cast<const T*>(region_.b) + col, call_.b.row_stride,
              call_.k, cols, call_.skips_zeros != 0, memory_.levels);
        });
      });
      write(const_cast<Real*>(sums), cols, 0, rows, col, cols);
    }
    return all;
  }

  int64_t run_across() {
    pack_all_left();
    for (int64_t col = 0; col < region_.cols; col += kCols) {
      const int64_t cols = smaller(region_.cols - col, kCols), stride = call_.b.col_stride;
      const Real* sums = of_dtype([&]<class T>(T) {
        return of_rows([&](auto count) -> const Real* {
          constexpr int kRows = decltype(count)::value;
          if constexpr (kRows <= kMostRowsAcross)
            return Across<Real, T, kRows>::sum(memory_.left,
                                               reinterpret_cast<const T*>(region_.b) + col * stride,
                                               stride, call_.k, cols, memory_.levels);
          else
            return nullptr;
        });
      });
      write(const_cast<Real*>(sums), kCols, 0, region_.rows, col, cols);
    }
    return region_.cols;
  }

  void pack_all_left() {
    const bridge_product_array& a = call_.a;
    const int64_t rows = region_.rows;
    pack<kTileRows>(a.dtype, {region_.a, a.row_stride, a.col_stride, rows, call_.k}, rows,
                    memory_.left);
  }

  // Returns function(x) for an x of b's dtype.
  template <class Function>
  auto of_dtype(const Function& function) const {
    switch (call_.b.dtype) {
      case BRIDGE_FLOAT16:
        return function(math::float16{});
      case BRIDGE_BFLOAT16:
        return function(math::bfloat16{});
      case BRIDGE_FLOAT32:
        return function(float{});
      default:
        return function(Real{});  // double, as Real is then
    }
  }

  // Returns function(count) for the region's rows, at most kMostStripRows, as a constant.
  template <class Function>
  auto of_rows(const Function& function) const {
    switch (region_.rows) {
      case 1:
        return function(std::integral_constant<int, 1>{});
      case 2:
        return function(std::integral_constant<int, 2>{});
      case 3:
        return function(std::integral_constant<int, 3>{});
      case 4:
        return function(std::integral_constant<int, 4>{});
      case 5:
        return function(std::integral_constant<int, 5>{});
      case 6:
        return function(std::integral_constant<int, 6>{});
      case 7:
        return function(std::integral_constant<int, 7>{});
      default:
        return function(std::integral_constant<int, 8>{});
    }
  }

  void pack_right(int64_t col, int64_t first, int64_t terms, Real* to) {
    const bridge_product_array& array = call_.b;
    const char* from = region_.b + (col * array.col_stride + first * array.row_stride) *
                                       element_bytes(array.dtype);
    const int64_t cols = smaller(region_.cols - col, kCols);
    pack<kCols>(array.dtype, {from, array.col_stride, array.row_stride, cols, terms}, kCols, to);
  }

  void pack_left(int64_t row, int64_t rows, int64_t first, int64_t terms) {
    const bridge_product_array& array = call_.a;
    const int64_t bytes = element_bytes(array.dtype);
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int64_t count = smaller(rows - i, kTileRows);
      const char* from =
          region_.a + ((row + i) * array.row_stride + first * array.col_stride) * bytes;
      pack<kTileRows>(array.dtype, {from, array.row_stride, array.col_stride, count, terms}, count,
                      memory_.a + i * terms);
      for (int64_t p = 0; memory_.zeros != nullptr && p < terms; p += kProductLeaf)
        zeros_of(i, terms)[p / kProductLeaf].mark(memory_.a + i * terms + p * count, count,
                                                  smaller(terms - p, kProductLeaf));
    }
  }

  // Returns those of the tile that begins with row i of a block, or null.
  LeafZeros* zeros_of(int64_t i, int64_t terms) {
    return memory_.zeros == nullptr ? nullptr : memory_.zeros + i / kTileRows * leaves_of(terms);
  }

  void sum_tile(int64_t row, int64_t i, int64_t rows, int64_t col, int64_t first, int64_t terms,
                const Real* right) {
    const int64_t col_tiles = (region_.cols + kCols - 1) / kCols;
    const int64_t tile = (row + i) / kTileRows * col_tiles + col / kCols;
    const bool is_last = first + terms == call_.k;
    sum_of<Real>(rows, std::make_integer_sequence<int, kTileRows>{})(
        memory_.a + i * terms, right, zeros_of(i, terms), terms, first / kProductLeaf, is_last,
        memory_.low, memory_.high + tile * memory_.high_levels * kSize);
    if (is_last) write(memory_.low, kCols, row + i, rows, col, smaller(region_.cols - col, kCols));
  }

  // Rounds sums, with `step` from row to row, into the result.
  void write(Real* sums, int64_t step, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    const bridge_product_array& c = call_.c;
    const int64_t bytes = element_bytes(c.dtype);
    for (int64_t j = 0; j < cols; j += kCols) {
      const int64_t count = smaller(cols - j, kCols);
      Real bias[kCols];
      if (region_.bias != nullptr) load_bias(col + j, count, bias);
      for (int64_t i = 0; i < rows; ++i) {
        Real* const from = sums + i * step + j;
        if (call_.skips_zeros != 0)  // -0, also of absent terms alone, becomes 0
          for (int64_t each = 0; each < count; ++each) from[each] += Real(0);
        if (region_.bias != nullptr) add_to(from, bias, count);
        write_row(from, region_.c + ((row + i) * c.row_stride + (col + j) * c.col_stride) * bytes,
                  count);
      }
    }
  }

  void write_row(const Real* sums, char* to, int64_t cols) {
    const bridge_product_array& c = call_.c;
    if (c.col_stride == 1) return store_run(c.dtype, to, sums, cols);
    const int64_t step = c.col_stride * element_bytes(c.dtype);
    for (int64_t j = 0; j < cols; ++j) store_run(c.dtype, to + j * step, sums + j, 1);
  }

  void load_bias(int64_t col, int64_t cols, Real* to) {
    const bridge_product_array& array = call_.bias;
    const int64_t step = array.col_stride * element_bytes(array.dtype);
    const char* const from = region_.bias + col * step;
    if (array.col_stride == 1) return load_run(array.dtype, from, to, cols);
    for (int64_t j = 0; j < cols; ++j) load_run(array.dtype, from + j * step, to + j, 1);
  }

  // A sum of no terms is 0.
  void write_empty() {
    for (int64_t row = 0; row < region_.rows; row += kTileRows) {
      for (int64_t col = 0; col < region_.cols; col += kCols) {
        fill(memory_.low, kSize, Real(0));
        write(memory_.low, kCols, row, smaller(region_.rows - row, kTileRows), col,
              smaller(region_.cols - col, kCols));
      }
    }
  }

  const Region& region_;
  const bridge_product& call_;
  const Memory& memory_;
};

}  // namespace

constexpr products::ProductTable product_tables = {
    {{kTileRows, Product<float>::kCols, Product<float>::scratch_bytes, Product<float>::run},
     {kTileRows, Product<double>::kCols, Product<double>::scratch_bytes, Product<double>::run}}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
