#include "bias_gelu_call.h"

#include <cstring>

#include "overlap.h"

namespace bridge::python {
namespace {

constexpr size_t kOutput = ~size_t{0};  // "position" of an output in bind_one

bool same_shape(const Operand& a, const Operand& b) {
  return a.ndim == b.ndim &&
         (a.ndim == 0 || std::memcmp(a.shape, b.shape, sizeof(int64_t) * a.ndim) == 0);
}

bool fits_as_row(const Operand& row, const Operand& input, int32_t batch_ndim) {
  if (row.ndim != batch_ndim + 1) return false;
  for (int32_t i = 0; i < batch_ndim; ++i) {
    if (row.shape[i] != input.shape[i]) return false;
  }
  return row.shape[batch_ndim] == (input.ndim > 0 ? input.shape[input.ndim - 1] : 1);
}

std::string name_of(size_t position, bool is_row) {
  if (position == kOutput) return is_row ? "the column-sum output" : "the output";
  const std::string owner =
      position < 2 ? "the input" : "factor " + std::to_string(position / 2 - 1);
  return is_row ? "the row vector of " + owner : owner;
}

CallError bind_one(const Operand& operand, const Operand& input, int32_t batch_ndim,
                   size_t position, bool is_row, bridge_array* array) {
  *array = bridge_array{};
  if (!operand.present) return {};
  if (operand.dtype < 0) {
    return {name_of(position, is_row) +
            " has a dtype that bias_gelu does not compute in; expected float16, bfloat16, float32 "
            "or float64"};
  }
  if (operand.device != input.device || operand.device_index != input.device_index) {
    return {name_of(position, is_row) + " is not on the device of the input"};
  }
  if (is_row ? !fits_as_row(operand, input, batch_ndim) : !same_shape(operand, input)) {
    return {name_of(position, is_row) + " has shape " + describe_shape(operand) +
            ", which does not fit the input's " + describe_shape(input) + " with " +
            std::to_string(batch_ndim) + " batch dimensions"};
  }
  int64_t sizes[3];
  if (!collapse(operand, batch_ndim, array, sizes)) {
    CallError error{name_of(position, is_row) + " has strides that the kernels cannot walk"};
    if (position != kOutput) error.unreadable = static_cast<int32_t>(position);
    return error;
  }
  if (is_row) array->row_stride = 0;
  // An empty tensor may have no address; for the library no address means no operand.
  static char nowhere;
  if (array->data == nullptr) array->data = &nowhere;
  return {};
}

}  // namespace

CallError bind_bias_gelu(const Operand* operands, size_t operand_count, const Operand outputs[2],
                         int32_t form, int32_t order, int32_t batch_ndim, bridge_bias_gelu* call) {
  // Every field that the library reads is set below; clearing the factors that are not in use would
  // cost a tiny call more than the rest of this function.
  if (operand_count < 2 || operand_count % 2 != 0 || operand_count > kMaxBiasGeluOperands) {
    return {"bias_gelu takes pairs of operands, at most " + std::to_string(kMaxBiasGeluOperands) +
            " operands, got " + std::to_string(operand_count)};
  }
  const Operand& input = operands[0];
  if (!input.present) return {"the input is missing"};
  if (batch_ndim < 0 || (batch_ndim > 0 && batch_ndim >= input.ndim)) {
    return {"batch_ndim is " + std::to_string(batch_ndim) + "; the input has shape " +
            describe_shape(input)};
  }
  Operand compact = input;
  compact.strides = nullptr;
  bridge_array ignored;
  int64_t sizes[3];
  collapse(compact, batch_ndim, &ignored, sizes);
  call->form = form;
  call->order = order;
  call->batch = sizes[0];
  call->rows = sizes[1];
  call->cols = sizes[2];
  call->factors = static_cast<int32_t>(operand_count / 2 - 1);
  for (size_t i = 0; i < operand_count; ++i) {
    bridge_pair& pair = i < 2 ? call->input : call->factor[i / 2 - 1];
    const bool is_row = i % 2 == 1;
    CallError error =
        bind_one(operands[i], input, batch_ndim, i, is_row, is_row ? &pair.row : &pair.full);
    if (error) return error;
  }
  for (int32_t is_row = 0; is_row < 2; ++is_row) {
    if (outputs[is_row].read_only) return {name_of(kOutput, is_row) + " is read-only"};
    CallError error = bind_one(outputs[is_row], input, batch_ndim, kOutput, is_row,
                               is_row ? &call->output.row : &call->output.full);
    if (error) return error;
  }
  // Of compact arrays, as XLA's are, the library itself finds every overlap.
  if (input.strides == nullptr) return {};
  return check_overlap(*call);
}

}  // namespace bridge::python
