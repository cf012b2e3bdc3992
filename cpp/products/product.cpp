// Matrix products on the CPU: checks a call and divides its result among threads.
#include "products/product.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "cpu/error.h"
#include "cpu/parallel.h"
#include "products/call.h"

namespace bridge {
namespace {

using products::ProductKernels;
using products::Region;

constexpr PerIsa<ProductTables> kTables = BRIDGE_PER_ISA(product_tables);
// Most rows and columns of a region: its packed panels and waiting sums stay in a cache. The rows
// of products without waiting sums are not limited.
constexpr int64_t kMostCols = 1024, kMostDeepRows = 512, kMostDeepCols = 512;
// Most columns of a product of few rows. Its strips are as wide as the nearest cache allows: longer
// runs of memory are read faster.
constexpr int64_t kMostColsOfFew = 4096;
// Fewest multiplications for which a second thread is worth waking, and the elements of b for which
// it is in a product of few rows, whose time is that of reading b.
constexpr double kLeastWork = 1 << 20, kLeastElements = 1 << 17;
constexpr int64_t kFewRows = 8, kFewCols = 4;

// Exchanges rows and columns of the whole call: c' = b' a'. Each product stays the same.
bridge_product transposed(bridge_product call) {
  std::swap(call.a, call.b);
  std::swap(call.m, call.n);
  for (bridge_product_array* array : {&call.a, &call.b, &call.c})
    std::swap(array->row_stride, array->col_stride);
  return call;
}

struct Grid {
  int64_t row_parts, col_parts, rows, cols;  // the last part may be smaller
};

int64_t parts_of(int64_t size, int64_t most) { return size <= most ? 1 : (size + most - 1) / most; }

int64_t rounded_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

Grid grid_of(const bridge_product& call, const ProductKernels& kernels, int64_t batches,
             int64_t threads) {
  const bool is_deep = call.k > products::kDeep;
  int64_t row_parts = is_deep ? parts_of(call.m, kMostDeepRows) : 1;
  const int64_t most_cols = call.m <= kFewRows ? kMostColsOfFew
                            : is_deep          ? kMostDeepCols
                                               : kMostCols;
  int64_t col_parts = parts_of(call.n, most_cols);
  // Parts for all threads, and a multiple of them if they are few, so that all end together.
  const auto parts = [&] { return batches * row_parts * col_parts; };
  while (parts() < 4 * threads && parts() % threads != 0) {
    const bool can_split_rows = call.m > row_parts * kernels.tile_rows;
    const bool can_split_cols = call.n > col_parts * kernels.tile_cols;
    if (!can_split_rows && !can_split_cols) break;
    // A part packs its rows and its columns: the longer side is cut.
    if (can_split_rows && (!can_split_cols || call.m / row_parts >= call.n / col_parts))
      ++row_parts;
    else
      ++col_parts;
  }
  const int64_t rows = rounded_up((call.m + row_parts - 1) / row_parts, kernels.tile_rows);
  const int64_t cols = rounded_up((call.n + col_parts - 1) / col_parts, kernels.tile_cols);
  return {(call.m + rows - 1) / rows, (call.n + cols - 1) / cols, rows, cols};
}

bridge_status run(const bridge_product& given, const bridge_executor* executor) {
  if (const char* wrong = products::wrong_with(given))
    return fail(BRIDGE_INVALID_ARGUMENT, "matmul: %s", wrong);
  if (given.tensor_cores != 0)
    return fail(BRIDGE_INVALID_ARGUMENT, "matmul: tensor cores on a CPU");
  const int64_t batches = products::batches_of(given);
  if (batches == 0 || given.m == 0 || given.n == 0) return BRIDGE_OK;
  const bool is_across = given.c.row_stride == 1 && given.c.col_stride != 1;
  const bool has_few_cols = given.n <= kFewCols && given.m > given.n;
  const bool can_transpose = given.bias.data == nullptr && given.skips_zeros == 0;
  const bridge_product call =
      can_transpose && (is_across || has_few_cols) ? transposed(given) : given;
  const double work = static_cast<double>(batches) * static_cast<double>(call.m) *
                      static_cast<double>(call.n) * static_cast<double>(call.k + 1);
  const int isa = isa_for(static_cast<int64_t>(std::min(work, 1e18)));
  if (isa < 0) return BRIDGE_INVALID_ARGUMENT;
  const ProductKernels& kernels = kTables.tables[isa]->of[products::is_double(call)];
  const int64_t most = executor == nullptr || executor->run == nullptr ? 1 : executor->threads;
  const double worth_of_few =
      call.m > kFewRows ? 0 : work / static_cast<double>(call.m) / kLeastElements;
  const auto worth = static_cast<int64_t>(std::min(std::max(work / kLeastWork, worth_of_few), 1e6));
  const int64_t threads = std::max<int64_t>(1, std::min(most, worth));
  const Grid grid = grid_of(call, kernels, batches, threads);
  const size_t bytes = kernels.scratch_bytes(call, grid.rows, grid.cols);
  const int64_t parts = grid.row_parts * grid.col_parts, units = batches * parts;
  const int64_t tasks = std::min(units, threads == 1 ? 1 : 4 * threads);
  std::atomic<bool> failed{false};
  parallel_for(threads == 1 ? nullptr : executor, tasks, [&](int64_t task) {
    const std::unique_ptr<char[]> scratch(new (std::nothrow) char[bytes]);
    if (scratch == nullptr) {
      failed = true;
      return;
    }
    const int64_t end = part_begin(units, tasks, task + 1);
    for (int64_t unit = part_begin(units, tasks, task); unit < end; ++unit) {
      const int64_t batch = unit / parts, part = unit % parts;
      const int64_t row = part / grid.col_parts * grid.rows;
      const int64_t col = part % grid.col_parts * grid.cols;
      const auto place = [&](const bridge_product_array& array, int64_t r, int64_t c) {
        return static_cast<char*>(array.data) + products::offset_of(call, array, batch) +
               (r * array.row_stride + c * array.col_stride) * element_bytes(array.dtype);
      };
      const bool has_bias = call.bias.data != nullptr;
      kernels.run({&call, place(call.a, row, 0), place(call.b, 0, col),
                   has_bias ? place(call.bias, 0, col) : nullptr, place(call.c, row, col),
                   std::min(grid.rows, call.m - row), std::min(grid.cols, call.n - col)},
                  scratch.get());
    }
  });
  return failed ? fail(BRIDGE_OUT_OF_MEMORY, "matmul: no memory for its panels") : BRIDGE_OK;
}

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_product_cpu(const bridge_product* call,
                                            const bridge_executor* executor) {
  if (call == nullptr) return bridge::fail(BRIDGE_INVALID_ARGUMENT, "matmul: the call is null");
  return bridge::run(*call, executor);
}
