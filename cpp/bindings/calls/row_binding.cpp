#include "bindings/calls/row_binding.h"

namespace bridge::bindings {
namespace {

bool broadcasts_to(const Operand& mask, const Operand& shape) {
  if (mask.ndim > shape.ndim) return false;
  for (int32_t i = 0; i < mask.ndim; ++i) {
    const int64_t own = mask.shape[i];
    if (own != 1 && own != shape.shape[shape.ndim - mask.ndim + i]) return false;
  }
  return true;
}

bool wrong(const RowArray& array, const std::string& what, const std::string& expected,
           CallError* error) {
  return error->set(std::string(array.name) + " has " + what + ", expected " + expected);
}

bool wrong_dtype(const RowArray& array, const std::string& expected, CallError* error) {
  return wrong(array, std::string("dtype ") + describe_dtype(array.array.dtype), expected, error);
}

bool wrong_shape(const RowArray& array, const std::string& expected, CallError* error) {
  return wrong(array, "shape " + describe_shape(array.array), expected, error);
}

}  // namespace

bool RowBinding::bind(const RowArray* arrays, size_t count, bool causal, bool fresh,
                      CallError* error) {
  arrays_ = arrays;
  count_ = count;
  causal_ = causal;
  if (!check_first(error)) return false;
  for (size_t i = 1; i < count; ++i) {
    if (!check(i, error)) return false;
  }
  const Operand& first = arrays[0].array;
  cols_ = first.shape[first.ndim - 1];
  for (size_t i = 0; i < count; ++i) {
    col_stride_[i] = 1;
    const Operand& operand = arrays[i].array;
    data_[i] = operand.present ? static_cast<char*>(address_of(operand)) : nullptr;
  }
  if (is_empty(first)) {  // there are no rows
    dims_ = 1;
    size_[0] = 0;
    for (size_t i = 0; i < count; ++i) stride_[i][0] = 0;
    return true;
  }
  for (size_t i = 0; i < count; ++i) {
    if (!read_columns(i, error)) return false;
  }
  return walk(first.ndim - 1, error) && (fresh || check_memory(error));
}

bool RowBinding::check_first(CallError* error) const {
  const Operand& first = arrays_[0].array;
  if (!first.present) return error->set(std::string(arrays_[0].name) + " is missing");
  if (!is_floating(first.dtype)) {
    return wrong_dtype(arrays_[0], "float16, bfloat16, float32 or float64", error);
  }
  if (first.ndim >= (causal_ ? 2 : 1)) return true;
  return wrong_shape(
      arrays_[0], causal_ ? "at least two dimensions, queries and keys" : "at least one dimension",
      error);
}

bool RowBinding::check(size_t i, CallError* error) const {
  const RowArray& array = arrays_[i];
  const Operand& operand = array.array;
  const Operand& first = arrays_[0].array;
  const bool is_output = array.kind == RowArray::output;
  if (!operand.present) {
    return !is_output || error->set(std::string(array.name) + " is missing");
  }
  const auto as_first = [&](const std::string& what) {
    return what + ", that of " + arrays_[0].name;
  };
  if (array.kind == RowArray::mask) {
    if (operand.dtype != BRIDGE_BOOL && operand.dtype != BRIDGE_UINT8) {
      return wrong_dtype(array, "bool or uint8", error);
    }
    if (!broadcasts_to(operand, first)) {
      return wrong_shape(array, as_first("one that broadcasts to " + describe_shape(first)), error);
    }
  } else {
    if (operand.dtype != first.dtype) {
      return wrong_dtype(array, as_first(describe_dtype(first.dtype)), error);
    }
    if (!same_shape(operand, first)) {
      return wrong_shape(array, as_first(describe_shape(first)), error);
    }
  }
  if (!same_device(operand, first)) {
    return error->set(std::string(array.name) + " is not on the device of " + arrays_[0].name);
  }
  return !(is_output && operand.read_only) || error->set(std::string(array.name) + " is read-only");
}

// Reads the column stride of an array: 1, or 0 for a mask that has one column.
bool RowBinding::read_columns(size_t i, CallError* error) {
  const RowArray& array = arrays_[i];
  const Operand& operand = array.array;
  if (!operand.present) return true;
  const int32_t last = operand.ndim - 1;
  const bool is_mask = array.kind == RowArray::mask;
  if (last < 0 || operand.shape[last] == 1) {
    col_stride_[i] = is_mask ? 0 : 1;
    return true;
  }
  if (operand.strides == nullptr) return true;
  col_stride_[i] = operand.strides[last];
  if (col_stride_[i] == 1 || (is_mask && col_stride_[i] == 0)) return true;
  if (array.kind != RowArray::output) error->unreadable = static_cast<int32_t>(i);
  return error->set(std::string(array.name) + " has strides that the kernels do not support");
}

// Merges the leading dimensions, from the last on. `causal`: the dimension of queries stays alone.
bool RowBinding::walk(int32_t leading, CallError* error) {
  const Operand& first = arrays_[0].array;
  int64_t compact[kMaxRowArrays];  // the stride of dimension d in an array that states none
  for (size_t i = 0; i < count_; ++i) {
    const Operand& operand = arrays_[i].array;
    compact[i] = operand.ndim > 0 ? operand.shape[operand.ndim - 1] : 1;
  }
  for (int32_t d = leading - 1; d >= 0; --d) {
    const int64_t size = first.shape[d];
    const bool queries = causal_ && d == leading - 1;
    int64_t stride[kMaxRowArrays] = {};
    for (size_t i = 0; i < count_; ++i) {
      const Operand& operand = arrays_[i].array;
      const int32_t own = d - (first.ndim - operand.ndim);
      if (!operand.present || own < 0 || operand.shape[own] == 1) continue;
      stride[i] = operand.strides != nullptr ? operand.strides[own] : compact[i];
      compact[i] *= operand.shape[own];
    }
    if (size == 1 && !queries) continue;
    const int32_t below = dims_ - 1;
    bool merges = below >= (causal_ ? 1 : 0);
    for (size_t i = 0; merges && i < count_; ++i) {
      merges = stride[i] == stride_[i][below] * size_[below];
    }
    if (merges) {
      size_[below] *= size;
      continue;
    }
    if (dims_ == kMaxWalkDims) {
      return error->set("the arrays have more than " + std::to_string(kMaxWalkDims) +
                        " dimensions that cannot be merged");
    }
    size_[dims_] = size;
    for (size_t i = 0; i < count_; ++i) stride_[i][dims_] = stride[i];
    ++dims_;
  }
  return true;
}

bool RowBinding::check_memory(CallError* error) const {
  Footprint footprints[kMaxRowArrays];
  size_t count = 0;
  for (size_t i = 0; i < count_; ++i) {
    const RowArray& array = arrays_[i];
    if (!array.array.present) continue;
    footprints[count++] = {
        array.name, data_[i], array.array.dtype, col_stride_[i] == 0 ? 1 : cols_,
        dims_,      size_,    stride_[i],        array.kind == RowArray::operand};
  }
  return check_overlap(&footprints[count - 1], 1, footprints, count - 1, error);
}

void RowBinding::write(bridge_row_space* space, RowLoops* loops) const {
  const int32_t inner = dims_ < BRIDGE_MAX_DIMS ? dims_ : BRIDGE_MAX_DIMS;
  space->dims = inner;
  space->causal = causal_;
  space->cols = cols_;
  for (int32_t d = 0; d < inner; ++d) space->size[inner - 1 - d] = size_[d];
  loops->dims = dims_ - inner;
  if (loops->dims == 0) return;
  loops->arrays = static_cast<int32_t>(count_);
  for (size_t i = 0; i < kMaxRowArrays; ++i) loops->data[i] = i < count_ ? data_[i] : nullptr;
  for (int32_t d = 0; d < loops->dims; ++d) {
    loops->size[d] = size_[inner + d];
    for (size_t i = 0; i < count_; ++i) {
      loops->bytes[i][d] = stride_[i][inner + d] * element_bytes(arrays_[i].array.dtype);
    }
  }
}

void RowBinding::write_strides(size_t array, int64_t stride[BRIDGE_MAX_DIMS]) const {
  const int32_t inner = dims_ < BRIDGE_MAX_DIMS ? dims_ : BRIDGE_MAX_DIMS;
  for (int32_t d = 0; d < inner; ++d) stride[inner - 1 - d] = stride_[array][d];
}

}  // namespace bridge::bindings
