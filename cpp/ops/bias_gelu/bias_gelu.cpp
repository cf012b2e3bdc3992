// bias_gelu on the CPU: which kernel computes the blocks of a call. The arithmetic is in
// bias_gelu_kernel.cpp, compiled once for each instruction set.
#include "ops/bias_gelu/bias_gelu.h"

#include <stddef.h>
#include <string.h>

#include "ops/bias_gelu/bias_gelu_kernel.h"
#include "walks/columns/block_driver.h"

namespace bridge {
namespace {

struct BiasGelu {
  using Call = bridge_bias_gelu;
  using Kernels = BiasGeluKernels;
  static constexpr const char* kName = "bias_gelu";
  static constexpr PerIsa<Kernels> kKernels = BRIDGE_PER_ISA(bias_gelu_kernels);
  static constexpr bridge_status (*validate)(const Call&, char*, size_t) = bridge::validate;
  static constexpr bool (*is_double)(const Call&) = bridge::is_double;

  // Leaves out the factors that are not in use, which are most of a call's bytes.
  static Call copy_of(const Call& given) {
    Call call;
    memcpy(&call, &given,
           offsetof(Call, factor) + static_cast<size_t>(given.factors) * sizeof(bridge_pair));
    call.output = given.output;
    return call;
  }

  template <class AnyCall, class Full, class Row>
  static void for_each_input(AnyCall& call, const Full& full, const Row& row) {
    auto see = [&](auto& pair) {
      if (is_present(pair.full)) full(pair.full);
      if (is_present(pair.row)) row(pair.row);
    };
    see(call.input);
    for (int i = 0; i < call.factors; ++i) see(call.factor[i]);
  }

  static bool batches_are_alike(const Call&) { return true; }
  static bool rows_go_on(const Call&) { return true; }

  // Takes calls whose every full operand has one dtype, with as many full factors as the order, and
  // an arithmetic that is that dtype's own.
  static BiasGeluFunction fused_kernel(const Kernels& kernels, const Call& call) {
    if (call.factors != call.order || call.order > 2) return nullptr;
    const int32_t dtype = call.input.full.dtype;
    bool same = !is_present(call.output.full) || call.output.full.dtype == dtype;
    for (int i = 0; i < call.factors; ++i)
      same = same && is_present(call.factor[i].full) && call.factor[i].full.dtype == dtype;
    if (!same || arithmetic_of(call) != native_arithmetic(dtype)) return nullptr;
    const bool sums = is_present(call.output.row);
    if (call.order == 0 && sums) return nullptr;
    const BiasGeluShape shape = call.order == 0   ? kForward
                                : call.order == 1 ? (sums ? kFirstSums : kFirst)
                                                  : (sums ? kSecondSums : kSecond);
    return kernels.fused[shape][dtype][call.form];
  }

  static BiasGeluFunction tiled_kernel(const Kernels& kernels, const Call& call) {
    return kernels.tiled[static_cast<int>(arithmetic_of(call))][call.form];
  }

  static BiasGeluBlock block_at(const Call& call, int64_t batch, int64_t row, int64_t rows,
                                int64_t col, int64_t cols) {
    BiasGeluBlock block;  // only as many factors as there are: a tiny call feels the clearing
    set_sizes(block, rows, cols);
    block.order = call.order;
    block.factors = call.factors;
    block.input = block_pair(call.input, batch, row, col);
    for (int i = 0; i < call.factors; ++i)
      block.factor[i] = block_pair(call.factor[i], batch, row, col);
    block.output = block_array(call.output.full, batch, row, col);
    return block;
  }
};

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_bias_gelu_cpu(const bridge_bias_gelu* call,
                                              const bridge_executor* executor) {
  return bridge::run_on_cpu<bridge::BiasGelu>(call, executor);
}
