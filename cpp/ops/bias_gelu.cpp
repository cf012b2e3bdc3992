// bias_gelu on the CPU: how a call is cut into blocks for the threads. The arithmetic is in
// bias_gelu_kernel.cpp, compiled once for each instruction set.
#include "ops/bias_gelu.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <new>

#include "cpu/error.h"
#include "cpu/huge_pages.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "ops/bias_gelu_kernel.h"

namespace bridge {
namespace {

constexpr PerIsa<BiasGeluKernels> kKernels = BRIDGE_PER_ISA(bias_gelu_kernels);

// Columns are cut at multiples of this: whole cache lines of every dtype, and of the kernel's step.
constexpr int64_t kColumnGrain = 256;
// Rows shorter than this are computed several at a time, as one row.
constexpr int64_t kShortRow = 256;
constexpr int64_t kFoldedRow = 512;
// Blocks that the second-level cache may not hold.
constexpr int64_t kPrefetchElements = int64_t{1} << 17;
// A fused loop pays from here on; shorter rows are gathered into tiles.
constexpr int64_t kFusedCols = 64;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// How wide each of about so many parts of the columns is.
int64_t part_width(int64_t cols, int64_t parts) {
  return ceil_div(ceil_div(cols, parts), kColumnGrain) * kColumnGrain;
}

// Calls visit(pair) for the pairs of the call that are addressed by row and column.
template <class Call, class Visit>
void for_each_pair(Call& call, Visit&& visit) {
  visit(call.input);
  for (int i = 0; i < call.factors; ++i) visit(call.factor[i]);
}

bool wants_sums(const bridge_bias_gelu& call) { return is_present(call.output.row); }

// Whether step(full, row) holds for every full and every row operand, the output's included.
template <class Full, class Row>
bool holds_for_all(const bridge_bias_gelu& call, const Full& full, const Row& row) {
  bool holds = !is_present(call.output.full) || full(call.output.full);
  for_each_pair(call, [&](const bridge_pair& pair) {
    if (is_present(pair.full)) holds = holds && full(pair.full);
    if (is_present(pair.row)) holds = holds && row(pair.row);
  });
  return holds;
}

// Without column sums, batches that follow one another as rows do are rows, and rows that follow
// one another without a gap and share no row vector are one row.
void merge_dimensions(bridge_bias_gelu& call) {
  auto set_row_stride = [&](auto stride_of) {
    auto set = [&](bridge_array& array) { array.row_stride = stride_of(array); };
    for_each_pair(call, [&](bridge_pair& pair) { set(pair.full); });
    set(call.output.full);
  };
  if (wants_sums(call)) return;
  if (call.rows == 1) set_row_stride([](const bridge_array& array) { return array.batch_stride; });
  const bool batches_are_rows = holds_for_all(
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
  const bool rows_are_one = holds_for_all(
      call, [&](const bridge_array& full) { return full.row_stride == call.cols; },
      [](const bridge_array&) { return false; });
  if (call.rows == 1 || rows_are_one) {
    call.cols *= call.rows;
    call.rows = 1;
  }
}

// The fused loop for the call, or null: every full operand of one dtype, as many full factors as
// the order, and an arithmetic that is that dtype's own.
BiasGeluFunction fused_kernel(const BiasGeluKernels& kernels, const bridge_bias_gelu& call) {
  if (call.factors != call.order || call.order > 2) return nullptr;
  const int32_t dtype = call.input.full.dtype;
  bool same = !is_present(call.output.full) || call.output.full.dtype == dtype;
  for (int i = 0; i < call.factors; ++i)
    same = same && is_present(call.factor[i].full) && call.factor[i].full.dtype == dtype;
  const Arithmetic own = is_16_bit(dtype)          ? Arithmetic::half
                         : dtype == BRIDGE_FLOAT32 ? Arithmetic::single
                                                   : Arithmetic::double_;
  if (!same || own != arithmetic_of(call)) return nullptr;
  const bool sums = wants_sums(call);
  if (call.order == 0 && sums) return nullptr;
  const BiasGeluShape shape = call.order == 0   ? kForward
                              : call.order == 1 ? (sums ? kFirstSums : kFirst)
                                                : (sums ? kSecondSums : kSecond);
  return kernels.fused[shape][dtype][call.form];
}

// The block of rows [row, row + rows) and columns [col, col + cols) of one batch.
BiasGeluBlock block_at(const bridge_bias_gelu& call, int64_t batch, int64_t row, int64_t rows,
                       int64_t col, int64_t cols) {
  auto at = [&](const bridge_array& array, int64_t first_row) {
    BiasGeluArray out{nullptr, 0, array.dtype};
    if (!is_present(array)) return out;
    const int64_t bytes = dtype_bytes(array.dtype);
    const int64_t first = batch * array.batch_stride + first_row * array.row_stride + col;
    out.data = static_cast<char*>(array.data) + first * bytes;
    out.row_bytes = array.row_stride * bytes;
    return out;
  };
  BiasGeluBlock block;  // only as many factors as there are: a tiny call feels the clearing
  block.order = call.order;
  block.factors = call.factors;
  block.rows = rows;
  block.cols = block.row_period = cols;
  block.input = {at(call.input.full, row), at(call.input.row, 0)};
  for (int i = 0; i < call.factors; ++i)
    block.factor[i] = {at(call.factor[i].full, row), at(call.factor[i].row, 0)};
  block.output = at(call.output.full, row);
  block.sums = nullptr;
  block.output_row = {nullptr, 0, 0};
  block.prefetch = rows * cols >= kPrefetchElements;
  return block;
}

// Without column sums: any rectangle of rows and columns is a part.
void run_elements(const bridge_bias_gelu& call, const bridge_executor* executor,
                  const BiasGeluKernels& kernels) {
  const int64_t fold =
      call.rows > 1 && call.cols < kShortRow &&
              holds_for_all(
                  call, [&](const bridge_array& full) { return full.row_stride == call.cols; },
                  [](const bridge_array&) { return true; })
          ? smaller(kFoldedRow / call.cols, call.rows)
          : 1;
  BiasGeluFunction kernel = call.cols * fold >= kFusedCols ? fused_kernel(kernels, call) : nullptr;
  if (kernel == nullptr) kernel = kernels.tiled[static_cast<int>(arithmetic_of(call))][call.form];

  auto run_block = [&](int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    BiasGeluBlock block = block_at(call, batch, row, rows, col, cols);
    if (fold == 1) return kernel(block);
    // `fold` rows make one; what is left over makes a last, shorter one.
    auto for_each_full = [&](auto&& visit) {
      visit(block.output);
      for_each_pair(block, [&](BiasGeluPair& pair) { visit(pair.full); });
    };
    const int64_t whole = rows / fold, rest = rows % fold;
    for_each_full([&](BiasGeluArray& full) { full.row_bytes *= fold; });
    block.rows = whole;
    block.cols = fold * cols;
    if (whole > 0) kernel(block);
    if (rest == 0) return;
    for_each_full([&](BiasGeluArray& full) {
      if (full.data != nullptr) full.data += whole * full.row_bytes;
    });
    block.rows = 1;
    block.cols = rest * cols;
    kernel(block);
  };

  const int64_t parts = parts_for(call.batch * call.rows * call.cols, executor);
  if (parts == 1 && call.batch == 1) {  // without the divisions below, which a tiny call feels
    const FloatEnvironment ieee;
    return run_block(0, 0, call.rows, 0, call.cols);
  }
  const int64_t row_parts = smaller(call.rows, ceil_div(parts, call.batch));
  const int64_t width = part_width(call.cols, ceil_div(parts, call.batch * row_parts));
  const int64_t col_parts = ceil_div(call.cols, width);
  const int64_t units = call.batch * row_parts * col_parts;
  parallel_for_parts(executor, units, parts, [&](int64_t unit) {
    const int64_t col = unit % col_parts * width, cols = smaller(width, call.cols - col);
    const int64_t row_part = unit / col_parts % row_parts, batch = unit / col_parts / row_parts;
    const int64_t row = part_begin(call.rows, row_parts, row_part);
    const int64_t rows = part_begin(call.rows, row_parts, row_part + 1) - row;
    run_block(batch, row, rows, col, cols);
  });
}

// With column sums: a part is a power of two of chunks, a node of the tree, times some columns.
// Where a batch has several nodes they meet in a workspace and a second pass adds them.
bridge_status run_sums(const bridge_bias_gelu& call, const bridge_executor* executor,
                       const BiasGeluKernels& kernels) {
  const int64_t parts = parts_for(call.batch * call.rows * call.cols, executor);
  const int64_t chunks = chunk_count(call.rows);
  int64_t node_chunks = kBlockChunks;
  while (node_chunks > 1 && call.batch * ceil_div(chunks, node_chunks) < parts) node_chunks /= 2;
  const int64_t nodes = ceil_div(chunks, node_chunks);
  const int64_t width = part_width(call.cols, ceil_div(parts, call.batch * nodes));
  const int64_t col_parts = ceil_div(call.cols, width);
  const int64_t units = call.batch * nodes * col_parts;

  const Arithmetic arithmetic = arithmetic_of(call);
  const int64_t real_bytes = arithmetic == Arithmetic::double_ ? 8 : 4;
  alignas(64) char small_workspace[8192];
  std::unique_ptr<char[]> large_workspace;
  char* workspace = small_workspace;
  if (nodes > 1) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(call.batch * nodes, call.cols * real_bytes, &bytes))
      throw std::bad_alloc();
    if (bytes > static_cast<int64_t>(sizeof small_workspace)) {
      large_workspace.reset(new char[static_cast<size_t>(bytes)]);
      workspace = large_workspace.get();
    }
  }

  BiasGeluFunction kernel = call.cols >= kFusedCols ? fused_kernel(kernels, call) : nullptr;
  if (kernel == nullptr) kernel = kernels.tiled[static_cast<int>(arithmetic)][call.form];
  auto output_row = [&](int64_t batch, int64_t col) {
    const bridge_array& row = call.output.row;
    const int64_t first = batch * row.batch_stride + col;
    return BiasGeluArray{static_cast<char*>(row.data) + first * dtype_bytes(row.dtype), 0,
                         row.dtype};
  };

  auto run_unit = [&](int64_t unit) {
    const int64_t col = unit % col_parts * width, cols = smaller(width, call.cols - col);
    const int64_t node = unit / col_parts % nodes, batch = unit / col_parts / nodes;
    const int64_t row = node * node_chunks * kChunkRows;
    const int64_t rows = smaller(node_chunks * kChunkRows, call.rows - row);
    BiasGeluBlock block = block_at(call, batch, row, rows, col, cols);
    if (nodes > 1)
      block.sums = workspace + ((batch * nodes + node) * call.cols + col) * real_bytes;
    else
      block.output_row = output_row(batch, col);
    kernel(block);
  };
  parallel_for_parts(executor, units, parts, run_unit);
  if (nodes == 1) return BRIDGE_OK;

  const int64_t add_parts = parts_for(call.batch * nodes * call.cols, executor);
  const int64_t add_width = part_width(call.cols, ceil_div(add_parts, call.batch));
  const int64_t add_col_parts = ceil_div(call.cols, add_width);
  parallel_for_parts(executor, call.batch * add_col_parts, add_parts, [&](int64_t unit) {
    const int64_t batch = unit / add_col_parts, col = unit % add_col_parts * add_width;
    kernels.add_nodes[static_cast<int>(arithmetic)](
        workspace + (batch * nodes * call.cols + col) * real_bytes, nodes, call.cols,
        smaller(add_width, call.cols - col), output_row(batch, col));
  });
  return BRIDGE_OK;
}

bool is_in_place(const bridge_bias_gelu& call) {
  bool in_place = false;
  for_each_pair(call, [&](const bridge_pair& pair) {
    in_place = in_place || pair.full.data == call.output.full.data;
  });
  return in_place;
}

// A copy without the factors that are not in use, which are most of a call's bytes.
bridge_bias_gelu copy_in_use(const bridge_bias_gelu& given) {
  bridge_bias_gelu call;
  memcpy(&call, &given,
         offsetof(bridge_bias_gelu, factor) +
             static_cast<size_t>(given.factors) * sizeof(bridge_pair));
  call.output = given.output;
  return call;
}

bridge_status run(const bridge_bias_gelu& given, const bridge_executor* executor) {
  const bridge_status status = validate(given, error_message(), kErrorBytes);
  if (status != BRIDGE_OK) return status;
  const BiasGeluKernels* const kernels =
      kKernels.for_elements(given.batch * given.rows * given.cols);
  if (kernels == nullptr) return BRIDGE_INVALID_ARGUMENT;
  if (given.batch == 0 || given.cols == 0) return BRIDGE_OK;
  if (given.rows == 0) {
    const bridge_array& row = given.output.row;
    const int64_t bytes = dtype_bytes(row.dtype);
    for (int64_t batch = 0; is_present(row) && batch < given.batch; ++batch)
      memset(static_cast<char*>(row.data) + batch * row.batch_stride * bytes, 0,
             static_cast<size_t>(given.cols * bytes));
    return BRIDGE_OK;
  }

  bridge_bias_gelu call = copy_in_use(given);
  if (call.batch == 1) {
    // A dimension of one has no stride that matters: none may be out of the ordinary.
    auto ignore = [](bridge_array& array) { array.batch_stride = 0; };
    for_each_pair(call, [&](bridge_pair& pair) { ignore(pair.full), ignore(pair.row); });
    ignore(call.output.full), ignore(call.output.row);
  }
  const bridge_array& full = call.output.full;
  if (is_present(full) && !is_in_place(call)) {
    // Rows that lie densely, in whichever order the dimensions stand.
    const int64_t bytes = call.batch * call.rows * call.cols * dtype_bytes(full.dtype);
    if (check::is_dense(check::sizes_of(call), {&full, "", false}))
      prefer_huge_pages(full.data, bytes);
  }
  merge_dimensions(call);
  if (wants_sums(call)) return run_sums(call, executor, *kernels);
  run_elements(call, executor, *kernels);
  return BRIDGE_OK;
}

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_bias_gelu_cpu(const bridge_bias_gelu* call,
                                              const bridge_executor* executor) {
  using bridge::fail;
  if (call == nullptr) return fail(BRIDGE_INVALID_ARGUMENT, "bias_gelu: the call is null");
  try {
    return bridge::run(*call, executor);
  } catch (const std::bad_alloc&) {
    return fail(BRIDGE_OUT_OF_MEMORY, "bias_gelu: no memory for the partial column sums");
  } catch (...) {
    return fail(BRIDGE_INTERNAL, "bias_gelu: an unexpected exception");
  }
}
