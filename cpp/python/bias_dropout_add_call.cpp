// bias_dropout_add from operands.
#include <cmath>

#include "pairs.h"

namespace bridge::python {
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
  using Call = bridge_bias_dropout_add;
  using CudaWorkspace = decltype(&::bridge_bias_dropout_add_cuda_workspace);
  using CudaRun = decltype(&::bridge_bias_dropout_add_cuda);
  static constexpr OpCounts kCounts{"bias_dropout_add", 1, 6, 2, 4};

  static CallError bind(const Arguments& call, bridge_bias_dropout_add* out) {
    const double* attributes = call.attributes;
    PairBinding binding(call.operands[0], name_of);
    CallError error = binding.read_sizes(attributes[2], &out->batch, &out->rows, &out->cols);
    if (error) return error;
    if (!read_whole(attributes[0], 0, kKeepsNothing, &out->threshold)) {
      return not_whole("threshold", attributes[0], 0, kKeepsNothing);
    }
    if (!std::isfinite(attributes[1])) return not_finite("factor", attributes[1]);
    out->factor = attributes[1];
    if (!read_whole(attributes[3], 0, kExactHighest, &out->index_cols)) {
      return not_whole("index_cols", attributes[3], 0, kExactHighest);
    }
    if (out->index_cols == 0) out->index_cols = out->cols;
    error = binding.bind_pair(call.operand(kX), call.operand(kBias), kX, &out->input);
    if (!error) error = binding.bind_full(call.operand(kResidual), kResidual, &out->residual);
    if (!error) error = binding.bind_integers(call.operand(kSeed), kSeed, &out->seed);
    if (!error) error = binding.bind_integers(call.operand(kOffset), kOffset, &out->offset);
    if (!error) error = binding.bind_integers(call.operand(kStart), kStart, &out->start);
    if (!error) error = binding.bind_output(call.results, &out->output);
    if (error) return error;
    if (out->output.row.data != nullptr && out->residual.data != nullptr) {
      return {"there are no column sums with a residual"};
    }
    PairFootprints footprints(out->batch, out->rows, out->cols);
    footprints.add_full(out->input.full);
    footprints.add_row(out->input.row);
    footprints.add_full(out->residual);
    for (const bridge_integers* integers : {&out->seed, &out->offset, &out->start}) {
      footprints.add_integers(*integers);
    }
    return footprints.check(out->output);
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

}  // namespace bridge::python
