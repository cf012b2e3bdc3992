#include "border/binding/pair_binding.h"

#include <cstdint>

namespace bridge::border {
namespace {

// One stride that walks dimensions [first, last) in row-major order, if there is one.
bool collapse_group(const Operand& operand, int32_t first, int32_t last, int64_t* stride) {
  *stride = 0;
  bool seen = false;
  int64_t expected = 0;
  for (int32_t i = last - 1; i >= first; --i) {
    const int64_t extent = operand.shape[i];
    if (extent == 1) continue;  // its stride is never taken
    if (!seen) {
      *stride = operand.strides[i];
      expected = *stride * extent;
      seen = true;
    } else {
      if (operand.strides[i] != expected) return false;
      expected *= extent;
    }
  }
  return true;
}

int64_t product(const Operand& operand, int32_t first, int32_t last) {
  int64_t size = 1;
  for (int32_t i = first; i < last; ++i) size *= operand.shape[i];
  return size;
}

// The dimension of the columns; the number of dimensions where there is none (0-d: one column).
int32_t column_dimension(const Operand& operand, int32_t batch_ndim) {
  return operand.ndim > batch_ndim ? operand.ndim - 1 : operand.ndim;
}

// Strides of [batch, rows, cols] with adjacent columns. False when those of a group do not collapse
// into one.
bool collapse(const Operand& operand, int32_t batch_ndim, bridge_array* array) {
  const int32_t ndim = operand.ndim;
  const int32_t last = column_dimension(operand, batch_ndim);
  if (operand.strides == nullptr || is_empty(operand)) {  // no stride of an empty array is taken
    array->row_stride = product(operand, last, ndim);
    array->batch_stride = product(operand, batch_ndim, ndim);
    return true;
  }
  if (!collapse_group(operand, 0, batch_ndim, &array->batch_stride)) return false;
  if (!collapse_group(operand, batch_ndim, last, &array->row_stride)) return false;
  return last == ndim || operand.shape[last] <= 1 || operand.strides[last] == 1;
}

bool fits_as_row(const Operand& row, const Operand& input, int32_t batch_ndim) {
  if (row.ndim != batch_ndim + 1) return false;
  for (int32_t i = 0; i < batch_ndim; ++i) {
    if (row.shape[i] != input.shape[i]) return false;
  }
  return row.shape[batch_ndim] == (input.ndim > 0 ? input.shape[input.ndim - 1] : 1);
}

}  // namespace

bool PairBinding::read_sizes(double batch_ndim, int64_t* batch, int64_t* rows, int64_t* cols) {
  if (!input_.present) return error_->set(name_of_(0) + " is missing");
  if (!read_whole("batch_ndim", batch_ndim, INT32_MIN, INT32_MAX, &batch_ndim_, error_)) {
    return false;
  }
  if (batch_ndim_ < 0 || (batch_ndim_ > 0 && batch_ndim_ >= input_.ndim)) {
    return error_->set("batch_ndim is " + std::to_string(batch_ndim_) + "; " + name_of_(0) +
                       " has shape " + describe_shape(input_));
  }
  const int32_t last = column_dimension(input_, batch_ndim_);
  *batch = product(input_, 0, batch_ndim_);
  *rows = product(input_, batch_ndim_, last);
  *cols = product(input_, last, input_.ndim);
  return true;
}

bool PairBinding::bind_full(const Operand& operand, size_t position, bridge_array* array) const {
  if (operand.present && !same_shape(operand, input_)) return wrong_shape(operand, position);
  return bind_array(operand, position, array);
}

bool PairBinding::bind_row(const Operand& operand, size_t position, bridge_array* array) const {
  if (operand.present && !fits_as_row(operand, input_, batch_ndim_)) {
    return wrong_shape(operand, position);
  }
  if (!bind_array(operand, position, array)) return false;
  array->row_stride = 0;
  return true;
}

bool PairBinding::bind_pair(const Operand& full, const Operand& row, size_t position,
                            bridge_pair* pair) const {
  return bind_full(full, position, &pair->full) && bind_row(row, position + 1, &pair->row);
}

bool PairBinding::bind_array(const Operand& operand, size_t position, bridge_array* array) const {
  *array = bridge_array{};
  if (!operand.present) return true;
  if (!is_floating(operand.dtype)) {
    return error_->set(name_of_(position) + " has dtype " + describe_dtype(operand.dtype) +
                       ", expected float16, bfloat16, float32 or float64");
  }
  if (!is_beside_input(operand, position)) return false;
  if (!collapse(operand, batch_ndim_, array)) return unreadable(position);
  array->data = address_of(operand);
  array->dtype = operand.dtype;
  return true;
}

bool PairBinding::bind_integers(const Operand& operand, size_t position,
                                bridge_integers* array) const {
  *array = bridge_integers{};
  if (!operand.present) return true;
  const bool in_words = operand.dtype == kUint32;
  if (!in_words && operand.dtype != kInt64) {
    return error_->set(name_of_(position) + " has dtype " + describe_dtype(operand.dtype) +
                       ", expected int64, or uint32 in pairs");
  }
  if (!is_beside_input(operand, position)) return false;
  bool fits = operand.ndim == batch_ndim_ + (in_words ? 1 : 0);
  for (int32_t i = 0; fits && i < batch_ndim_; ++i) fits = operand.shape[i] == input_.shape[i];
  if (!fits || (in_words && operand.shape[batch_ndim_] != 2)) return wrong_shape(operand, position);
  if (operand.strides == nullptr || is_empty(operand)) {
    array->batch_stride = batch_ndim_ > 0 ? 1 : 0;
  } else {
    int64_t stride;
    if (!collapse_group(operand, 0, batch_ndim_, &stride) ||
        (in_words && (stride % 2 != 0 || operand.strides[batch_ndim_] != 1))) {
      return unreadable(position);
    }
    array->batch_stride = in_words ? stride / 2 : stride;
  }
  void* address = address_of(operand);
  if (reinterpret_cast<uintptr_t>(address) % sizeof(int64_t) != 0) {
    return error_->set(name_of_(position) + " is not aligned in memory to 8 bytes");
  }
  array->data = static_cast<const int64_t*>(address);
  return true;
}

bool PairBinding::bind_output(const Operand results[2], bridge_pair* output) const {
  for (size_t i = 0; i < 2; ++i) {
    if (results[i].read_only) return error_->set(name_of_(kResult + i) + " is read-only");
  }
  return bind_pair(results[0], results[1], kResult, output);
}

bool PairBinding::is_beside_input(const Operand& operand, size_t position) const {
  if (same_device(operand, input_)) return true;
  return error_->set(name_of_(position) + " is not on the device of " + name_of_(0));
}

bool PairBinding::wrong_shape(const Operand& operand, size_t position) const {
  return error_->set(name_of_(position) + " has shape " + describe_shape(operand) +
                     ", which does not fit " + name_of_(0) + "'s " + describe_shape(input_) +
                     " with " + std::to_string(batch_ndim_) + " batch dimensions");
}

bool PairBinding::unreadable(size_t position) const {
  if (position < kResult) error_->unreadable = static_cast<int32_t>(position);
  return error_->set(name_of_(position) + " has strides that the kernels cannot walk");
}

void PairFootprints::add(const void* data, const char* name, int32_t dtype, int64_t cols,
                         const int64_t* size, int64_t batch_stride, int64_t row_stride) {
  if (data == nullptr || is_empty()) return;
  int64_t* stride = strides_[count_];
  stride[0] = batch_stride;
  stride[1] = row_stride;
  entries_[count_++] = {name, data, dtype, cols, 2, size, stride, size == full_size_};
}

void PairFootprints::add_full(const bridge_array& array) {
  add(array.data, "an operand", array.dtype, cols_, full_size_, array.batch_stride,
      array.row_stride);
}

void PairFootprints::add_row(const bridge_array& array) {
  add(array.data, "a row vector", array.dtype, cols_, row_size_, array.batch_stride, 0);
}

void PairFootprints::add_integers(const bridge_integers& integers) {
  add(integers.data, "an integer operand", kInt64, 1, row_size_, integers.batch_stride, 0);
}

bool PairFootprints::check(const bridge_pair& output, CallError* error) {
  const size_t operands = count_;
  add_full(output.full);
  const bool has_full = count_ > operands;
  add_row(output.row);
  for (size_t i = operands; i < count_; ++i) {
    entries_[i].name = i == operands && has_full ? "the output" : "the column-sum output";
  }
  return check_overlap(entries_ + operands, count_ - operands, entries_, operands, error);
}

}  // namespace bridge::border
