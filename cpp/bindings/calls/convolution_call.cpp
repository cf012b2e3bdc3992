#include "bindings/calls/convolution_call.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace bridge::bindings {
namespace {

constexpr int32_t kMostSpace = BRIDGE_CONVOLUTION_DIMS;

int64_t stride_of(const Operand& operand, int32_t dim) {
  if (operand.strides != nullptr) return operand.strides[dim];
  int64_t stride = 1;
  for (int32_t d = operand.ndim - 1; d > dim; --d) stride *= operand.shape[d];
  return stride;
}

// One of x, w and y, with the place of its sizes in the call.
struct Named {
  const char* name;
  const Operand* operand;
  Numbers order;
  bridge_convolution_array* array;
  int64_t sizes[2 + kMostSpace];
};

bool read(const Operand& x, Named* named, CallError* error) {
  const Operand& operand = *named->operand;
  const std::string name = named->name;
  if (!operand.present) return error->set(name + " is missing");
  if (operand.dtype < BRIDGE_FLOAT16 || operand.dtype > BRIDGE_FLOAT64)
    return error->set(name + " is " + describe_dtype(operand.dtype) +
                      ", expected a floating dtype");
  if (operand.ndim != x.ndim || operand.ndim < 3 || operand.ndim > 2 + kMostSpace)
    return error->set(name + " has shape " + describe_shape(operand) +
                      ", expected as many dimensions as x: 3 to 5");
  if (!same_device(operand, x)) return error->set(name + " is on another device than x");
  const auto count = static_cast<size_t>(operand.ndim);
  bool is_used[2 + kMostSpace] = {};
  const auto dim_of = [&](int32_t i) {
    return named->order.count == 0 ? i : static_cast<int32_t>(named->order.data[i]);
  };
  if (named->order.count != 0) {
    bool is_order = named->order.count == count;
    for (size_t i = 0; i < count && is_order; ++i) {
      const int64_t dim = named->order.data[i];
      is_order = dim >= 0 && dim < operand.ndim && !is_used[dim];
      if (is_order) is_used[dim] = true;
    }
    if (!is_order) return error->set("the order of " + name + " is none of its dimensions");
  }
  bridge_convolution_array& array = *named->array;
  array.data = address_of(operand);
  array.dtype = operand.dtype;
  array.batch_stride = stride_of(operand, dim_of(0));
  array.channel_stride = stride_of(operand, dim_of(1));
  for (int64_t& size : named->sizes) size = 1;
  named->sizes[0] = operand.shape[dim_of(0)];
  named->sizes[1] = operand.shape[dim_of(1)];
  const int32_t space = operand.ndim - 2;
  for (int32_t d = 0; d < space; ++d) {
    const int32_t place = kMostSpace - space + d;
    array.stride[place] = stride_of(operand, dim_of(2 + d));
    named->sizes[2 + place] = operand.shape[dim_of(2 + d)];
  }
  return true;
}

bool read_numbers(const char* name, const Numbers& numbers, int32_t space, int64_t fewer,
                  int64_t* to, CallError* error) {
  if (numbers.count != static_cast<size_t>(space))
    return error->set(std::string(name) + " has " + std::to_string(numbers.count) +
                      " numbers, expected " + std::to_string(space));
  std::fill(to, to + kMostSpace, fewer);
  std::copy(numbers.data, numbers.data + numbers.count, to + kMostSpace - space);
  return true;
}

bool read_bias(const ConvolutionArguments& given, int64_t channels, bridge_convolution* call,
               CallError* error) {
  const Operand& bias = given.bias;
  if (!bias.present) return true;
  if (bias.dtype < BRIDGE_FLOAT16 || bias.dtype > BRIDGE_FLOAT64)
    return error->set(std::string("bias is ") + describe_dtype(bias.dtype) +
                      ", expected a floating dtype");
  if (bias.ndim != 1 || bias.shape[0] != channels)
    return error->set("bias has shape " + describe_shape(bias) + ", expected [" +
                      std::to_string(channels) + "]");
  if (!same_device(bias, given.x)) return error->set("bias is on another device than x");
  call->bias.data = address_of(bias);
  call->bias.dtype = bias.dtype;
  call->bias.channel_stride = stride_of(bias, 0);
  return true;
}

}  // namespace

bool bind_convolution(const ConvolutionArguments& given, bridge_convolution* call,
                      CallError* error) {
  *call = {};
  if (given.kind < 0 || given.kind > 2)
    return error->set("kind is " + std::to_string(given.kind) + ", expected 0, 1 or 2");
  Named x{"x", &given.x, given.x_order, &call->x, {}};
  Named w{"w", &given.w, given.w_order, &call->w, {}};
  Named y{"y", &given.y, given.y_order, &call->y, {}};
  for (Named* named : {&x, &w, &y})
    if (!read(given.x, named, error)) return false;
  const int32_t space = given.x.ndim - 2;
  if (!read_numbers("stride", given.stride, space, 1, call->stride, error) ||
      !read_numbers("padding", given.padding, space, 0, call->padding, error) ||
      !read_numbers("dilation", given.dilation, space, 1, call->dilation, error))
    return false;
  call->kind = given.kind;
  call->groups = given.groups;
  call->tensor_cores = given.has_tensor_cores ? 1 : 0;
  call->images = x.sizes[0];
  call->in_channels = x.sizes[1];
  call->out_channels = y.sizes[1];
  for (int32_t d = 0; d < kMostSpace; ++d) {
    call->in[d] = x.sizes[2 + d];
    call->kernel[d] = w.sizes[2 + d];
    call->out[d] = y.sizes[2 + d];
  }
  if (call->groups < 1 || call->in_channels % call->groups != 0 ||
      call->out_channels % call->groups != 0 || y.sizes[0] != call->images ||
      w.sizes[0] != call->out_channels || w.sizes[1] != call->in_channels / call->groups)
    return error->set("x " + describe_shape(given.x) + ", w " + describe_shape(given.w) +
                      " and y " + describe_shape(given.y) + " in " + std::to_string(given.groups) +
                      " groups do not fit each other");
  return read_bias(given,
                   given.kind == BRIDGE_CONVOLUTION_INPUT ? call->in_channels : call->out_channels,
                   call, error);
}

}  // namespace bridge::bindings
