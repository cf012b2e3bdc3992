// bias_dropout_add from operands.
#include "border/binding/pair_binding.h"

namespace bridge::border {
namespace {

enum : size_t { kX, kBias, kResidual, kSeed, kOffset, kStart };
constexpr double kKeepsNothing = 4294967296.0;  // 2^32

std::string name_of(size_t position) {
  static const char* const operands[] = {"x", "bias", "residual", "seed", "offset", "start"};
  if (position < PairBinding::kResult) return operands[position];
  return position == PairBinding::kResult ? "the output" : "the column-sum output";
}

// operands: x, bias, residual, seed, offset, start; results: [full, row]; attributes: threshold,
// factor, batch_ndim, index_cols (0: the columns of x).
struct BiasDropoutAdd {
  using Bound = bridge_bias_dropout_add;
  using CudaWorkspace = decltype(&::bridge_bias_dropout_add_cuda_workspace);
  using CudaRun = decltype(&::bridge_bias_dropout_add_cuda);
  static constexpr OpCounts kCounts{"bias_dropout_add", 1, 6, 2, 4};

  static bool bind(const Arguments& call, bridge_bias_dropout_add* out, CallError* error) {
    const double* attributes = call.attributes;
    PairBinding binding(call.operands[0], name_of, error);
    if (!read_whole("threshold", attributes[0], 0, kKeepsNothing, &out->threshold, error) ||
        !read_finite("factor", attributes[1], &out->factor, error) ||
        !binding.read_sizes(attributes[2], &out->batch, &out->rows, &out->cols) ||
        !read_whole("index_cols", attributes[3], 0, kExactHighest, &out->index_cols, error) ||
        !binding.bind_pair(call.operand(kX), call.operand(kBias), kX, &out->input) ||
        !binding.bind_full(call.operand(kResidual), kResidual, &out->residual) ||
        !binding.bind_integers(call.operand(kSeed), kSeed, &out->seed) ||
        !binding.bind_integers(call.operand(kOffset), kOffset, &out->offset) ||
        !binding.bind_integers(call.operand(kStart), kStart, &out->start) ||
        !binding.bind_output(call.results, &out->output)) {
      return false;
    }
    if (out->index_cols == 0) out->index_cols = out->cols;
    if (call.results_are_fresh) return true;
    PairFootprints footprints(out->batch, out->rows, out->cols);
    footprints.add_full(out->input.full);
    footprints.add_row(out->input.row);
    footprints.add_full(out->residual);
    footprints.add_integers(out->seed);
    footprints.add_integers(out->offset);
    footprints.add_integers(out->start);
    return footprints.check(out->output, error);
  }

  static int64_t elements(const bridge_bias_dropout_add& call) {
    return call.batch * call.rows * call.cols;
  }

  static bridge_status run_on_cpu(const bridge_bias_dropout_add* call,
                                  const bridge_executor* executor) {
    return bridge_bias_dropout_add_cpu(call, executor);
  }
};

}  // namespace

extern const Op kBiasDropoutAdd;
const Op kBiasDropoutAdd = make_op<BiasDropoutAdd>();

}  // namespace bridge::border
