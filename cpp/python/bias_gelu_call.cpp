// bias_gelu from operands.
#include "pairs.h"

namespace bridge::python {
namespace {

std::string name_of(size_t position) {
  if (position >= PairBinding::kResult) {
    return position == PairBinding::kResult ? "the output" : "the column-sum output";
  }
  const std::string owner =
      position < 2 ? "the input" : "factor " + std::to_string(position / 2 - 1);
  return position % 2 == 1 ? "the row vector of " + owner : owner;
}

// operands: [full, row] of the input, then of each factor; results: [full, row]; attributes: form,
// order, batch_ndim.
struct BiasGelu {
  using Call = bridge_bias_gelu;
  using CudaWorkspace = decltype(&::bridge_bias_gelu_cuda_workspace);
  using CudaRun = decltype(&::bridge_bias_gelu_cuda);
  static constexpr OpCounts kCounts{"bias_gelu", 2, 2 * (1 + BRIDGE_MAX_FACTORS), 2, 3};

  // Every field that the library reads is set; clearing the factors that are not in use would cost
  // a tiny call more than the rest of this function.
  static CallError bind(const Arguments& call, bridge_bias_gelu* out) {
    if (call.operand_count % 2 != 0) {
      return {std::to_string(call.operand_count) + " operands, expected pairs"};
    }
    PairBinding binding(call.operands[0], name_of);
    CallError error = binding.read_sizes(call.attributes[2], &out->batch, &out->rows, &out->cols);
    if (error) return error;
    if (!read_whole(call.attributes[0], kInt32Lowest, kInt32Highest, &out->form)) {
      return not_whole("form", call.attributes[0], 0, BRIDGE_GELU_SIGMOID);
    }
    if (!read_whole(call.attributes[1], kInt32Lowest, kInt32Highest, &out->order)) {
      return not_whole("order", call.attributes[1], 0, BRIDGE_MAX_GELU_ORDER);
    }
    out->factors = static_cast<int32_t>(call.operand_count / 2 - 1);
    for (size_t i = 0; i < call.operand_count; i += 2) {
      error = binding.bind_pair(call.operands[i], call.operands[i + 1], i, pair_of(out, i));
      if (error) return error;
    }
    error = binding.bind_output(call.results, &out->output);
    // Of compact arrays, as XLA's are, the library itself finds every overlap.
    if (error || call.operands[0].strides == nullptr) return error;
    PairFootprints footprints(out->batch, out->rows, out->cols);
    for (size_t i = 0; i < call.operand_count; i += 2) {
      footprints.add_full(pair_of(out, i)->full);
      footprints.add_row(pair_of(out, i)->row);
    }
    return footprints.check(out->output);
  }

  static bridge_pair* pair_of(bridge_bias_gelu* call, size_t operand) {
    return operand < 2 ? &call->input : &call->factor[operand / 2 - 1];
  }

  static int64_t elements(const bridge_bias_gelu& call) {
    return call.batch * call.rows * call.cols;
  }

  static bridge_status run_on_cpu(const bridge_bias_gelu* call, const bridge_executor* executor) {
    return bridge_bias_gelu_cpu(call, executor);
  }
};

}  // namespace

extern const Op kBiasGelu;
const Op kBiasGelu = make_op<BiasGelu>();

}  // namespace bridge::python
