// bias_dropout_add on the CPU: which kernel computes the blocks of a call. The arithmetic is in
// bias_dropout_add_kernel.cpp, compiled once for each instruction set.
#include "ops/bias_dropout_add/bias_dropout_add.h"

#include "ops/bias_dropout_add/bias_dropout_add_kernel.h"
#include "walks/columns/block_driver.h"

namespace bridge {
namespace {

struct BiasDropoutAdd {
  using Call = bridge_bias_dropout_add;
  using Kernels = BiasDropoutAddKernels;
  static constexpr const char* kName = "bias_dropout_add";
  static constexpr PerIsa<Kernels> kKernels = BRIDGE_PER_ISA(bias_dropout_add_kernels);
  static constexpr bridge_status (*validate)(const Call&, char*, size_t) = bridge::validate;
  static constexpr bool (*is_double)(const Call&) = bridge::is_double;

  static Call copy_of(const Call& given) { return given; }

  template <class AnyCall, class Full, class Row>
  static void for_each_input(AnyCall& call, const Full& full, const Row& row) {
    if (is_present(call.input.full)) full(call.input.full);
    if (is_present(call.input.row)) row(call.input.row);
    if (is_present(call.residual)) full(call.residual);
  }

  // Each batch draws from a start of its own.
  static bool batches_are_alike(const Call& call) { return keep_of(call) != Keep::some; }
  static bool rows_go_on(const Call& call) { return is_index_dense(call); }

  // Takes calls whose every full operand has one dtype, and an arithmetic that is that dtype's own.
  static BiasDropoutAddFunction fused_kernel(const Kernels& kernels, const Call& call) {
    const int32_t dtype = call.input.full.dtype, keep = static_cast<int32_t>(keep_of(call));
    auto same = [&](const bridge_array& full) { return !is_present(full) || full.dtype == dtype; };
    if (!same(call.residual) || !same(call.output.full)) return nullptr;
    if (is_double(call) != (dtype == BRIDGE_FLOAT64)) return nullptr;
    return is_present(call.output.row) ? kernels.sums[dtype][keep]
           : is_present(call.residual) ? kernels.residual[dtype][keep]
                                       : kernels.plain[dtype][keep];
  }

  static BiasDropoutAddFunction tiled_kernel(const Kernels& kernels, const Call& call) {
    return kernels.tiled[is_double(call)][static_cast<int>(keep_of(call))];
  }

  static BiasDropoutAddBlock block_at(const Call& call, int64_t batch, int64_t row, int64_t rows,
                                      int64_t col, int64_t cols) {
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
};

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_bias_dropout_add_cpu(const bridge_bias_dropout_add* call,
                                                     const bridge_executor* executor) {
  return bridge::run_on_cpu<bridge::BiasDropoutAdd>(call, executor);
}
