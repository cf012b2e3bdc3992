// bias_gelu from operands.
#include "border/binding/pair_binding.h"

namespace bridge::border {
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
  using Bound = bridge_bias_gelu;
  using CudaWorkspace = decltype(&::bridge_bias_gelu_cuda_workspace);
  using CudaRun = decltype(&::bridge_bias_gelu_cuda);
  static constexpr OpCounts kCounts{"bias_gelu", 2, 2 * (1 + BRIDGE_MAX_FACTORS), 2, 3};

  // Every field that the library reads is set; clearing the factors that are not in use would cost
  // a tiny call more than the rest of this function.
  static bool bind(const Arguments& call, bridge_bias_gelu* out, CallError* error) {
    const size_t count = call.operand_count;
    if (count % 2 != 0) return error->set(std::to_string(count) + " operands, expected pairs");
    PairBinding binding(call.operands[0], name_of, error);
    // What a form and an order may be, the library itself says.
    const double* attributes = call.attributes;
    if (!binding.read_sizes(attributes[2], &out->batch, &out->rows, &out->cols) ||
        !read_whole("form", attributes[0], INT32_MIN, INT32_MAX, &out->form, error) ||
        !read_whole("order", attributes[1], INT32_MIN, INT32_MAX, &out->order, error)) {
      return false;
    }
    out->factors = static_cast<int32_t>(count / 2 - 1);
    for (size_t i = 0; i < count; i += 2) {
      if (!binding.bind_pair(call.operands[i], call.operands[i + 1], i, pair_of(out, i))) {
        return false;
      }
    }
    if (!binding.bind_output(call.results, &out->output)) return false;
    // The library itself finds every overlap of compact arrays, as XLA's are.
    if (call.results_are_fresh || call.operands[0].strides == nullptr) return true;
    PairFootprints footprints(out->batch, out->rows, out->cols);
    for (size_t i = 0; i < count; i += 2) {
      footprints.add_full(pair_of(out, i)->full);
      footprints.add_row(pair_of(out, i)->row);
    }
    return footprints.check(out->output, error);
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

}  // namespace bridge::border
