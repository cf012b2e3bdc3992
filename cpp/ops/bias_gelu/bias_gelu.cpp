// bias_gelu on the CPU: which kernel computes the blocks of a call. The arithmetic is in
// bias_gelu_kernel.cpp, compiled once for each instruction set.
#include "ops/bias_gelu/bias_gelu.h"

#include <stddef.h>
#include <string.h>

#include <new>

#include "cpu/error.h"
#include "cpu/isa.h"
#include "ops/bias_gelu/bias_gelu_kernel.h"
#include "walks/columns/block_driver.h"

namespace bridge {

template <>
struct ArraysOf<bridge_bias_gelu> {
  template <class Call, class Full, class Row>
  static void for_each(Call& call, const Full& full, const Row& row) {
    auto see = [&](auto& pair) {
      if (is_present(pair.full)) full(pair.full);
      if (is_present(pair.row)) row(pair.row);
    };
    see(call.input);
    for (int i = 0; i < call.factors; ++i) see(call.factor[i]);
    if (is_present(call.output.full)) full(call.output.full);
  }
};

namespace {

constexpr PerIsa<BiasGeluKernels> kKernels = BRIDGE_PER_ISA(bias_gelu_kernels);

bool wants_sums(const bridge_bias_gelu& call) { return is_present(call.output.row); }

// The fused loop for the call, or null: every full operand of one dtype, as many full factors as
// the order, and an arithmetic that is that dtype's own.
BiasGeluFunction fused_kernel(const BiasGeluKernels& kernels, const bridge_bias_gelu& call) {
  if (call.factors != call.order || call.order > 2) return nullptr;
  const int32_t dtype = call.input.full.dtype;
  bool same = !is_present(call.output.full) || call.output.full.dtype == dtype;
  for (int i = 0; i < call.factors; ++i)
    same = same && is_present(call.factor[i].full) && call.factor[i].full.dtype == dtype;
  const Arithmetic own = is_16_bit(dtype)          ? Arithmetic::single_for_16_bits
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

// The kernel for rows of so many columns.
BiasGeluFunction kernel_for(const BiasGeluKernels& kernels, const bridge_bias_gelu& call,
                            int64_t cols) {
  BiasGeluFunction kernel = cols >= kFusedCols ? fused_kernel(kernels, call) : nullptr;
  return kernel != nullptr ? kernel
                           : kernels.tiled[static_cast<int>(arithmetic_of(call))][call.form];
}

void run_elements(const bridge_bias_gelu& call, const bridge_executor* executor,
                  const BiasGeluKernels& kernels) {
  const int64_t fold = rows_in_one(call);
  const BiasGeluFunction kernel = kernel_for(kernels, call, call.cols * fold);
  for_each_rectangle(check::sizes_of(call), executor,
                     [&](int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols) {
                       BiasGeluBlock block = block_at(call, batch, row, rows, col, cols);
                       run_folded(block, fold, kernel);
                     });
}

void run_sums(const bridge_bias_gelu& call, const bridge_executor* executor,
              const BiasGeluKernels& kernels) {
  const BiasGeluFunction kernel = kernel_for(kernels, call, call.cols);
  const Arithmetic arithmetic = arithmetic_of(call);
  for_each_node(check::sizes_of(call), arithmetic == Arithmetic::double_, call.output.row, executor,
                kernels.add_nodes[static_cast<int>(arithmetic)],
                [&](int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols, char* sums,
                    const BlockArray& output_row) {
                  BiasGeluBlock block = block_at(call, batch, row, rows, col, cols);
                  block.sums = sums;
                  block.output_row = output_row;
                  kernel(block);
                });
}

bool is_in_place(const bridge_bias_gelu& call) {
  bool in_place = call.input.full.data == call.output.full.data;
  for (int i = 0; i < call.factors; ++i)
    in_place = in_place || call.factor[i].full.data == call.output.full.data;
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
    clear_sums(given.output.row, check::sizes_of(given));
    return BRIDGE_OK;
  }
  bridge_bias_gelu call = copy_in_use(given);
  prepare(call, is_in_place(call));
  if (wants_sums(call)) {
    run_sums(call, executor, *kernels);
  } else {
    merge_dimensions(call, true, true);
    run_elements(call, executor, *kernels);
  }
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
