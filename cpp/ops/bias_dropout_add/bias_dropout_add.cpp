// bias_dropout_add on the CPU: which kernel computes the blocks of a call. The arithmetic is in
// bias_dropout_add_kernel.cpp, compiled once for each instruction set.
#include "ops/bias_dropout_add/bias_dropout_add.h"

#include <new>

#include "cpu/error.h"
#include "cpu/isa.h"
#include "ops/bias_dropout_add/bias_dropout_add_kernel.h"
#include "walks/columns/block_driver.h"

namespace bridge {

template <>
struct ArraysOf<bridge_bias_dropout_add> {
  template <class Call, class Full, class Row>
  static void for_each(Call& call, const Full& full, const Row& row) {
    if (is_present(call.input.full)) full(call.input.full);
    if (is_present(call.input.row)) row(call.input.row);
    if (is_present(call.residual)) full(call.residual);
    if (is_present(call.output.full)) full(call.output.full);
  }
};

namespace {

constexpr PerIsa<BiasDropoutAddKernels> kKernels = BRIDGE_PER_ISA(bias_dropout_add_kernels);

// The fused loop for the call, or null: every full operand of one dtype, and an arithmetic that is
// that dtype's own.
BiasDropoutAddFunction fused_kernel(const BiasDropoutAddKernels& kernels,
                                    const bridge_bias_dropout_add& call) {
  const int32_t dtype = call.input.full.dtype, keep = static_cast<int32_t>(keep_of(call));
  auto same = [&](const bridge_array& full) { return !is_present(full) || full.dtype == dtype; };
  if (!same(call.residual) || !same(call.output.full)) return nullptr;
  if (is_double(call) != (dtype == BRIDGE_FLOAT64)) return nullptr;
  return is_present(call.output.row) ? kernels.sums[dtype][keep]
         : is_present(call.residual) ? kernels.residual[dtype][keep]
                                     : kernels.plain[dtype][keep];
}

// The kernel for rows of so many columns.
BiasDropoutAddFunction kernel_for(const BiasDropoutAddKernels& kernels,
                                  const bridge_bias_dropout_add& call, int64_t cols) {
  BiasDropoutAddFunction kernel = cols >= kFusedCols ? fused_kernel(kernels, call) : nullptr;
  return kernel != nullptr ? kernel
                           : kernels.tiled[is_double(call)][static_cast<int>(keep_of(call))];
}

// The block of rows [row, row + rows) and columns [col, col + cols) of one batch.
BiasDropoutAddBlock block_at(const bridge_bias_dropout_add& call, int64_t batch, int64_t row,
                             int64_t rows, int64_t col, int64_t cols) {
  BiasDropoutAddBlock block;
  set_sizes(block, rows, cols);
  block.input = block_pair(call.input, batch, row, col);
  block.residual = block_array(call.residual, batch, row, col);
  block.output = block_array(call.output.full, batch, row, col);
  block.factor = call.factor;
  block.threshold = static_cast<uint32_t>(call.threshold);
  block.index_cols = block.index_step = static_cast<uint64_t>(call.index_cols);
  block.seed = block.offset = block.index = 0;
  if (keep_of(call) != Keep::some) return block;
  block.seed = integer_at(call.seed, batch);
  block.offset = integer_at(call.offset, batch);
  block.index = integer_at(call.start, batch) + static_cast<uint64_t>(row) * block.index_cols +
                static_cast<uint64_t>(col);
  return block;
}

void run_elements(const bridge_bias_dropout_add& call, const bridge_executor* executor,
                  const BiasDropoutAddKernels& kernels) {
  const int64_t fold = is_index_dense(call) ? rows_in_one(call) : 1;
  const BiasDropoutAddFunction kernel = kernel_for(kernels, call, call.cols * fold);
  for_each_rectangle(check::sizes_of(call), executor,
                     [&](int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols) {
                       BiasDropoutAddBlock block = block_at(call, batch, row, rows, col, cols);
                       block.index_step *= static_cast<uint64_t>(fold);
                       run_folded(block, fold, kernel);
                     });
}

void run_sums(const bridge_bias_dropout_add& call, const bridge_executor* executor,
              const BiasDropoutAddKernels& kernels) {
  const BiasDropoutAddFunction kernel = kernel_for(kernels, call, call.cols);
  for_each_node(check::sizes_of(call), is_double(call), call.output.row, executor,
                kernels.add_nodes[is_double(call)],
                [&](int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols, char* sums,
                    const BlockArray& output_row) {
                  BiasDropoutAddBlock block = block_at(call, batch, row, rows, col, cols);
                  block.sums = sums;
                  block.output_row = output_row;
                  kernel(block);
                });
}

bridge_status run(const bridge_bias_dropout_add& given, const bridge_executor* executor) {
  const bridge_status status = validate(given, error_message(), kErrorBytes);
  if (status != BRIDGE_OK) return status;
  const BiasDropoutAddKernels* const kernels =
      kKernels.for_elements(given.batch * given.rows * given.cols);
  if (kernels == nullptr) return BRIDGE_INVALID_ARGUMENT;
  if (given.batch == 0 || given.cols == 0) return BRIDGE_OK;
  if (given.rows == 0) {
    clear_sums(given.output.row, check::sizes_of(given));
    return BRIDGE_OK;
  }
  bridge_bias_dropout_add call = given;
  const void* const output = call.output.full.data;
  prepare(call, output == call.input.full.data || output == call.residual.data);
  if (is_present(call.output.row)) {
    run_sums(call, executor, *kernels);
  } else {
    // Batches draw each from its own start.
    merge_dimensions(call, keep_of(call) != Keep::some, is_index_dense(call));
    run_elements(call, executor, *kernels);
  }
  return BRIDGE_OK;
}

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_bias_dropout_add_cpu(const bridge_bias_dropout_add* call,
                                                     const bridge_executor* executor) {
  using bridge::fail;
  if (call == nullptr) return fail(BRIDGE_INVALID_ARGUMENT, "bias_dropout_add: the call is null");
  try {
    return bridge::run(*call, executor);
  } catch (const std::bad_alloc&) {
    return fail(BRIDGE_OUT_OF_MEMORY, "bias_dropout_add: no memory for the partial column sums");
  } catch (...) {
    return fail(BRIDGE_INTERNAL, "bias_dropout_add: an unexpected exception");
  }
}
