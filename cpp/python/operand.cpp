#include "operand.h"

namespace bridge::python {

std::string describe_shape(const Operand& operand) {
  std::string text = "[";
  for (int32_t i = 0; i < operand.ndim; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(operand.shape[i]);
  }
  return text + "]";
}

namespace {

bool is_empty(const Operand& operand) {
  for (int32_t i = 0; i < operand.ndim; ++i) {
    if (operand.shape[i] == 0) return true;
  }
  return false;
}

// One stride that walks dimensions [first, last) in row-major order, if there is one.
bool collapse_group(const Operand& operand, int32_t first, int32_t last, int64_t* size,
                    int64_t* stride) {
  *size = 1;
  *stride = 0;
  bool seen = false;
  int64_t expected = 0;
  for (int32_t i = last - 1; i >= first; --i) {
    const int64_t extent = operand.shape[i];
    *size *= extent;
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

}  // namespace

bool collapse(const Operand& operand, int32_t batch_ndim, bridge_array* array, int64_t sizes[3]) {
  array->data = operand.data;
  array->dtype = operand.dtype;
  const int32_t ndim = operand.ndim;
  const int32_t last = ndim > batch_ndim ? ndim - 1 : ndim;  // 0-d: a single column
  sizes[0] = sizes[1] = sizes[2] = 1;
  if (operand.strides == nullptr || is_empty(operand)) {  // no stride of an empty array is taken
    for (int32_t i = 0; i < batch_ndim; ++i) sizes[0] *= operand.shape[i];
    for (int32_t i = batch_ndim; i < last; ++i) sizes[1] *= operand.shape[i];
    if (last < ndim) sizes[2] = operand.shape[last];
    array->row_stride = sizes[2];
    array->batch_stride = sizes[1] * sizes[2];
    return true;
  }
  int64_t column_stride = 1;
  if (!collapse_group(operand, 0, batch_ndim, &sizes[0], &array->batch_stride)) return false;
  if (!collapse_group(operand, batch_ndim, last, &sizes[1], &array->row_stride)) return false;
  if (last < ndim) {
    sizes[2] = operand.shape[last];
    if (sizes[2] > 1) column_stride = operand.strides[last];
  }
  return column_stride == 1;
}

}  // namespace bridge::python
