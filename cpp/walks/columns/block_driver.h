// How a call on arrays of [batch, rows, cols] is cut into blocks for the threads of a CPU. An op
// takes part with a struct of static members:
//   Call, Kernels                    the C struct; what is compiled for each instruction set
//   kName, kKernels                  the op's name; PerIsa<Kernels>
//   validate(call, message, bytes)
//   is_double(call)
//   copy_of(call)                    a copy of a valid call, to be changed
//   for_each_input(call, full, row)  calls full(array) for the full inputs that are present and
//                                    row(array) for the row vectors
//   batches_are_alike(call)          whether nothing depends on the batch but where it lies
//   rows_go_on(call)                 whether a row goes on where the one before it ends
//   fused_kernel(kernels, call)      the loop for this kind of call, or null
//   tiled_kernel(kernels, call)      the loop for every call
//   block_at(call, batch, row, rows, col, cols)
// and a member of its block, for_each_full(visit), which calls visit(array) for the full arrays,
// absent ones too.
#ifndef BRIDGE_WALKS_COLUMNS_BLOCK_DRIVER_H_
#define BRIDGE_WALKS_COLUMNS_BLOCK_DRIVER_H_

#include <bridge/bridge.h>
#include <stdint.h>
#include <string.h>

#include <memory>
#include <new>

#include "cpu/error.h"
#include "cpu/huge_pages.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "walks/array_checks.h"
#include "walks/columns/block.h"
#include "walks/columns/column_sum_tree.h"
#include "walks/dtypes.h"

namespace bridge {

// Columns are cut at multiples of this: whole cache lines of every dtype, and of the kernels' step.
constexpr int64_t kColumnGrain = 256;
// Rows shorter than this are computed several at a time, as one row.
constexpr int64_t kShortRow = 256;
constexpr int64_t kFoldedRow = 512;
// Blocks that the second-level cache may not hold.
constexpr int64_t kPrefetchElements = int64_t{1} << 17;
// A fused loop pays from here on; shorter rows are gathered into tiles.
constexpr int64_t kFusedCols = 64;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// How wide each of about so many parts of the columns is.
inline int64_t part_width(int64_t cols, int64_t parts) {
  return ceil_div(ceil_div(cols, parts), kColumnGrain) * kColumnGrain;
}

// Calls full(array) for the full arrays that are present, row(array) for the row vectors of inputs.
template <class Op, class Call, class Full, class Row>
void for_each_array(Call& call, const Full& full, const Row& row) {
  Op::for_each_input(call, full, row);
  if (is_present(call.output.full)) full(call.output.full);
}

// Whether full(array) and row(array) hold for all arrays of the call.
template <class Op, class Full, class Row>
bool holds_for_all(const typename Op::Call& call, const Full& full, const Row& row) {
  bool holds = true;
  for_each_array<Op>(
      call, [&](const bridge_array& array) { holds = holds && full(array); },
      [&](const bridge_array& array) { holds = holds && row(array); });
  return holds;
}

template <class Op>
bool has_dense_rows(const typename Op::Call& call) {
  return holds_for_all<Op>(
      call, [&](const bridge_array& full) { return full.row_stride == call.cols; },
      [](const bridge_array&) { return true; });
}

template <class Op>
bool is_in_place(const typename Op::Call& call) {
  bool in_place = false;
  Op::for_each_input(
      call, [&](const bridge_array& full) { in_place |= full.data == call.output.full.data; },
      [](const bridge_array&) {});
  return in_place;
}

// Readies a call for being cut: a dimension of one has no stride that matters, and a large output
// that is no input's memory is asked for in huge pages.
template <class Op>
void prepare(typename Op::Call& call) {
  if (call.batch == 1) {
    auto ignore = [](bridge_array& array) { array.batch_stride = 0; };
    for_each_array<Op>(call, ignore, ignore);
    ignore(call.output.row);
  }
  const bridge_array& full = call.output.full;
  if (!is_present(full) || is_in_place<Op>(call)) return;
  // Rows that lie densely, in whichever order the dimensions stand.
  const int64_t bytes = call.batch * call.rows * call.cols * dtype_bytes(full.dtype);
  if (check::is_dense(check::sizes_of(call), {&full, "", false}))
    prefer_huge_pages(full.data, bytes);
}

// The sums over no rows are zero.
inline void clear_sums(const bridge_array& row, const check::Sizes& sizes) {
  const int64_t bytes = dtype_bytes(row.dtype);
  for (int64_t batch = 0; is_present(row) && batch < sizes.batch; ++batch)
    memset(static_cast<char*>(row.data) + batch * row.batch_stride * bytes, 0,
           static_cast<size_t>(sizes.cols * bytes));
}

// For calls without column sums: batches that follow one another as rows do are rows, where the op
// treats them alike, and rows that follow one another without a gap and share no row vector are one
// row, where the op counts on through rows.
template <class Op>
void merge_dimensions(typename Op::Call& call) {
  const bool batches_are_alike = Op::batches_are_alike(call), rows_go_on = Op::rows_go_on(call);
  if (call.rows == 1)
    for_each_array<Op>(
        call, [](bridge_array& full) { full.row_stride = full.batch_stride; },
        [](bridge_array&) {});
  const bool batches_are_rows =
      batches_are_alike &&
      holds_for_all<Op>(
          call,
          [&](const bridge_array& full) {
            int64_t stride = 0;
            return !__builtin_mul_overflow(call.rows, full.row_stride, &stride) &&
                   full.batch_stride == stride;
          },
          [](const bridge_array& row) { return row.batch_stride == 0; });
  if (call.batch == 1 || batches_are_rows) {
    call.rows *= call.batch;
    call.batch = 1;
  }
  const bool rows_are_one =
      rows_go_on &&
      holds_for_all<Op>(
          call, [&](const bridge_array& full) { return full.row_stride == call.cols; },
          [](const bridge_array&) { return false; });
  if (call.rows == 1 || rows_are_one) {
    call.cols *= call.rows;
    call.rows = 1;
  }
}

// An operand of the block that begins at these indices.
inline BlockArray block_array(const bridge_array& array, int64_t batch, int64_t row, int64_t col) {
  if (!is_present(array)) return {nullptr, 0, array.dtype};
  const int64_t bytes = dtype_bytes(array.dtype);
  const int64_t first = batch * array.batch_stride + row * array.row_stride + col;
  return {static_cast<char*>(array.data) + first * bytes, array.row_stride * bytes, array.dtype};
}

inline BlockPair block_pair(const bridge_pair& pair, int64_t batch, int64_t row, int64_t col) {
  return {block_array(pair.full, batch, row, col), block_array(pair.row, batch, 0, col)};
}

inline void set_sizes(Block& block, int64_t rows, int64_t cols) {
  block.rows = rows;
  block.cols = block.row_period = cols;
  block.sums = nullptr;
  block.output_row = {nullptr, 0, 0};
  block.prefetch = rows * cols >= kPrefetchElements;
}

// How many of the call's short dense rows make one.
template <class Op>
int64_t rows_in_one(const typename Op::Call& call) {
  return call.rows > 1 && call.cols < kShortRow && Op::rows_go_on(call) && has_dense_rows<Op>(call)
             ? smaller(kFoldedRow / call.cols, call.rows)
             : 1;
}

// Runs the kernel with `fold` rows as one; what is left over makes a last, shorter one.
template <class OpBlock, class Kernel>
void run_folded(OpBlock& block, int64_t fold, Kernel kernel) {
  if (fold == 1) return kernel(block);
  block.fold_rows(fold);
  const int64_t cols = block.cols, whole = block.rows / fold, rest = block.rows % fold;
  block.for_each_full([&](BlockArray& full) { full.row_bytes *= fold; });
  block.rows = whole;
  block.cols = fold * cols;
  if (whole > 0) kernel(block);
  if (rest == 0) return;
  block.for_each_full([&](BlockArray& full) {
    if (full.data != nullptr) full.data += whole * full.row_bytes;
  });
  block.skip_rows(whole * fold);
  block.rows = 1;
  block.cols = rest * cols;
  kernel(block);
}

// Without column sums: any rectangle of rows and columns is a part. Calls run(batch, row, rows,
// col, cols) for each.
template <class Run>
void for_each_rectangle(const check::Sizes& sizes, const bridge_executor* executor,
                        const Run& run) {
  const int64_t parts = parts_for(sizes.batch * sizes.rows * sizes.cols, executor);
  if (parts == 1 && sizes.batch == 1) {  // without the divisions below, which a tiny call feels
    const FloatEnvironment ieee;
    return run(int64_t{0}, int64_t{0}, sizes.rows, int64_t{0}, sizes.cols);
  }
  const int64_t row_parts = smaller(sizes.rows, ceil_div(parts, sizes.batch));
  const int64_t width = part_width(sizes.cols, ceil_div(parts, sizes.batch * row_parts));
  const int64_t col_parts = ceil_div(sizes.cols, width);
  const int64_t units = sizes.batch * row_parts * col_parts;
  parallel_for_parts(executor, units, parts, [&](int64_t unit) {
    const int64_t col = unit % col_parts * width, cols = smaller(width, sizes.cols - col);
    const int64_t row_part = unit / col_parts % row_parts, batch = unit / col_parts / row_parts;
    const int64_t row = part_begin(sizes.rows, row_parts, row_part);
    const int64_t rows = part_begin(sizes.rows, row_parts, row_part + 1) - row;
    run(batch, row, rows, col, cols);
  });
}

// With column sums: a part is a power of two of chunks, a node of the tree, times some columns.
// Where a batch has several nodes they meet in a workspace and a second pass adds them. Calls
// run(batch, row, rows, col, cols, sums, output_row) for each part, with what the block says of its
// sums. Throws std::bad_alloc.
template <class Run>
void for_each_node(const check::Sizes& sizes, bool is_double, const bridge_array& output,
                   const bridge_executor* executor, AddNodes add_nodes, const Run& run) {
  const int64_t parts = parts_for(sizes.batch * sizes.rows * sizes.cols, executor);
  const int64_t chunks = chunk_count(sizes.rows);
  int64_t node_chunks = kBlockChunks;
  while (node_chunks > 1 && sizes.batch * ceil_div(chunks, node_chunks) < parts) node_chunks /= 2;
  const int64_t nodes = ceil_div(chunks, node_chunks);
  const int64_t width = part_width(sizes.cols, ceil_div(parts, sizes.batch * nodes));
  const int64_t col_parts = ceil_div(sizes.cols, width);
  const int64_t units = sizes.batch * nodes * col_parts;

  const int64_t real_bytes = is_double ? 8 : 4;
  alignas(64) char small_workspace[8192];
  std::unique_ptr<char[]> large_workspace;
  char* workspace = small_workspace;
  if (nodes > 1) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(sizes.batch * nodes, sizes.cols * real_bytes, &bytes))
      throw std::bad_alloc();
    if (bytes > static_cast<int64_t>(sizeof small_workspace)) {
      large_workspace.reset(new char[static_cast<size_t>(bytes)]);
      workspace = large_workspace.get();
    }
  }

  parallel_for_parts(executor, units, parts, [&](int64_t unit) {
    const int64_t col = unit % col_parts * width, cols = smaller(width, sizes.cols - col);
    const int64_t node = unit / col_parts % nodes, batch = unit / col_parts / nodes;
    const int64_t row = node * node_chunks * kChunkRows;
    const int64_t rows = smaller(node_chunks * kChunkRows, sizes.rows - row);
    if (nodes > 1)
      run(batch, row, rows, col, cols,
          workspace + ((batch * nodes + node) * sizes.cols + col) * real_bytes,
          BlockArray{nullptr, 0, 0});
    else
      run(batch, row, rows, col, cols, static_cast<char*>(nullptr),
          block_array(output, batch, 0, col));
  });
  if (nodes == 1) return;

  const int64_t add_parts = parts_for(sizes.batch * nodes * sizes.cols, executor);
  const int64_t add_width = part_width(sizes.cols, ceil_div(add_parts, sizes.batch));
  const int64_t add_col_parts = ceil_div(sizes.cols, add_width);
  parallel_for_parts(executor, sizes.batch * add_col_parts, add_parts, [&](int64_t unit) {
    const int64_t batch = unit / add_col_parts, col = unit % add_col_parts * add_width;
    add_nodes(workspace + (batch * nodes * sizes.cols + col) * real_bytes, nodes, sizes.cols,
              smaller(add_width, sizes.cols - col), block_array(output, batch, 0, col));
  });
}

// The kernel for rows of so many columns.
template <class Op>
auto kernel_for(const typename Op::Kernels& kernels, const typename Op::Call& call, int64_t cols) {
  const auto kernel = cols >= kFusedCols ? Op::fused_kernel(kernels, call) : nullptr;
  return kernel != nullptr ? kernel : Op::tiled_kernel(kernels, call);
}

template <class Op>
bridge_status run(const typename Op::Call& given, const bridge_executor* executor) {
  const bridge_status status = Op::validate(given, error_message(), kErrorBytes);
  if (status != BRIDGE_OK) return status;
  const auto* const kernels = Op::kKernels.for_elements(given.batch * given.rows * given.cols);
  if (kernels == nullptr) return BRIDGE_INVALID_ARGUMENT;
  if (given.batch == 0 || given.cols == 0) return BRIDGE_OK;
  if (given.rows == 0) {
    clear_sums(given.output.row, check::sizes_of(given));
    return BRIDGE_OK;
  }
  typename Op::Call call = Op::copy_of(given);
  prepare<Op>(call);
  if (is_present(call.output.row)) {
    const auto kernel = kernel_for<Op>(*kernels, call, call.cols);
    for_each_node(check::sizes_of(call), Op::is_double(call), call.output.row, executor,
                  kernels->add_nodes[Op::is_double(call)],
                  [&](int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols,
                      char* sums, const BlockArray& output_row) {
                    auto block = Op::block_at(call, batch, row, rows, col, cols);
                    block.sums = sums;
                    block.output_row = output_row;
                    kernel(block);
                  });
    return BRIDGE_OK;
  }
  merge_dimensions<Op>(call);
  const int64_t fold = rows_in_one<Op>(call);
  const auto kernel = kernel_for<Op>(*kernels, call, call.cols * fold);
  for_each_rectangle(check::sizes_of(call), executor,
                     [&](int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols) {
                       auto block = Op::block_at(call, batch, row, rows, col, cols);
                       run_folded(block, fold, kernel);
                     });
  return BRIDGE_OK;
}

// The C function of the op.
template <class Op>
bridge_status run_on_cpu(const typename Op::Call* call, const bridge_executor* executor) {
  if (call == nullptr) return fail(BRIDGE_INVALID_ARGUMENT, "%s: the call is null", Op::kName);
  try {
    return run<Op>(*call, executor);
  } catch (const std::bad_alloc&) {
    return fail(BRIDGE_OUT_OF_MEMORY, "%s: no memory for the partial column sums", Op::kName);
  } catch (...) {
    return fail(BRIDGE_INTERNAL, "%s: an unexpected exception", Op::kName);
  }
}

}  // namespace bridge

#endif  // BRIDGE_WALKS_COLUMNS_BLOCK_DRIVER_H_
