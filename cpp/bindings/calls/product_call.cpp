#include "bindings/calls/product_call.h"

#include <cstdint>
#include <string>
#include <utility>

namespace bridge::bindings {
namespace {

int64_t stride_of(const Operand& operand, int32_t dim) {
  if (operand.strides != nullptr) return operand.strides[dim];
  int64_t stride = 1;
  for (int32_t d = operand.ndim - 1; d > dim; --d) stride *= operand.shape[d];
  return stride;
}

bool is_floating(int32_t dtype) { return dtype >= BRIDGE_FLOAT16 && dtype <= BRIDGE_FLOAT64; }

// The arrays of a call with their names and the number of their last dimensions, without batches.
struct Named {
  const char* name;
  const Operand* operand;
  bridge_product_array* array;
  int32_t own_dims;
};

bool add_batch(const Named& named, int32_t dim, int32_t dims, int64_t size, int64_t* stride,
               CallError* error) {
  const int32_t batches = named.operand->ndim - named.own_dims;
  *stride = 0;
  if (batches == 0 && named.own_dims == 1) return true;  // one bias for all batches
  if (batches != dims)
    return error->set(std::string(named.name) + " has " + std::to_string(batches) +
                      " dimensions of batches, expected " + std::to_string(dims));
  const int64_t own = named.operand->shape[dim];
  if (own != size && own != 1)
    return error->set(std::string(named.name) + " has shape " + describe_shape(*named.operand) +
                      ", expected " + std::to_string(size) + " or 1 at dimension " +
                      std::to_string(dim));
  if (own == size) *stride = stride_of(*named.operand, dim);
  return true;
}

}  // namespace

bool bind_product(const ProductArguments& given, bridge_product* call, CallError* error) {
  *call = {};
  const Named all[] = {{"a", &given.a, &call->a, 2},
                       {"b", &given.b, &call->b, 2},
                       {"the result", &given.c, &call->c, 2},
                       {"bias", &given.bias, &call->bias, 1}};
  const int32_t count = given.bias.present ? 4 : 3;
  for (int32_t i = 0; i < count; ++i) {
    const Operand& operand = *all[i].operand;
    if (!operand.present) return error->set(std::string(all[i].name) + " is missing");
    if (!is_floating(operand.dtype))
      return error->set(std::string(all[i].name) + " is " + describe_dtype(operand.dtype) +
                        ", expected a floating dtype");
    if (operand.ndim < all[i].own_dims)
      return error->set(std::string(all[i].name) + " has shape " + describe_shape(operand) +
                        ", expected at least " + std::to_string(all[i].own_dims) + " dimensions");
    if (!same_device(operand, given.a))
      return error->set(std::string(all[i].name) + " is on another device than a");
    bridge_product_array& array = *all[i].array;
    array.data = address_of(operand);
    array.dtype = operand.dtype;
    array.col_stride = stride_of(operand, operand.ndim - 1);
    if (all[i].own_dims == 2) array.row_stride = stride_of(operand, operand.ndim - 2);
  }
  call->skips_zeros = given.skips_zeros ? 1 : 0;
  call->tensor_cores = given.has_tensor_cores ? 1 : 0;
  if (given.is_a_transposed) std::swap(call->a.row_stride, call->a.col_stride);
  if (given.is_b_transposed) std::swap(call->b.row_stride, call->b.col_stride);
  const auto size = [](const Operand& operand, bool is_last) {
    return operand.shape[operand.ndim - (is_last ? 1 : 2)];
  };
  call->m = size(given.c, false);
  call->n = size(given.c, true);
  call->k = size(given.a, !given.is_a_transposed);
  if (size(given.a, given.is_a_transposed) != call->m ||
      size(given.b, given.is_b_transposed) != call->k ||
      size(given.b, !given.is_b_transposed) != call->n ||
      (given.bias.present && given.bias.shape[given.bias.ndim - 1] != call->n))
    return error->set("a " + describe_shape(given.a) + ", b " + describe_shape(given.b) +
                      " and the result " + describe_shape(given.c) + " do not fit each other");
  // Neighbouring batches that all arrays step through alike become one dimension.
  const int32_t dims = given.c.ndim - 2;
  for (int32_t d = 0; d < dims; ++d) {
    const int64_t batches = given.c.shape[d];
    int64_t strides[4] = {};
    for (int32_t i = 0; i < count; ++i)
      if (!add_batch(all[i], d, dims, batches, &strides[i], error)) return false;
    if (batches == 1) continue;
    int32_t place = call->dims - 1;
    bool joins = place >= 0;
    for (int32_t i = 0; i < count && joins; ++i)
      joins = all[i].array->stride[place] == strides[i] * batches;
    if (!joins) {
      place = call->dims++;
      if (place == BRIDGE_MAX_DIMS)
        return error->set("more than " + std::to_string(BRIDGE_MAX_DIMS) +
                          " dimensions of batches that cannot be joined");
    }
    call->size[place] = joins ? call->size[place] * batches : batches;
    for (int32_t i = 0; i < count; ++i) all[i].array->stride[place] = strides[i];
  }
  return true;
}

}  // namespace bridge::bindings
