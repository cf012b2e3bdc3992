// A convolution from tensors: the C struct of the call.
#ifndef BRIDGE_BINDINGS_CALLS_CONVOLUTION_CALL_H_
#define BRIDGE_BINDINGS_CALLS_CONVOLUTION_CALL_H_

#include <bridge/convolution.h>

#include "bindings/calls/operand.h"

namespace bridge::bindings {

// Numbers of an argument, such as a stride for each spatial dimension.
struct Numbers {
  const int64_t* data = nullptr;
  size_t count = 0;
};

// x [images, channels, *space], w [channels of y, channels of x / groups, *kernel], y [images,
// channels, *space], and a bias [channels of the result] or none. If an order is given, dimension i
// of these is dimension order[i] of the operand.
struct ConvolutionArguments {
  Operand x, w, bias, y;
  int32_t kind = 0;
  Numbers stride, padding, dilation;
  Numbers x_order, w_order, y_order;
  int64_t groups = 1;
  bool has_tensor_cores = false;
};

// Returns false with the error set.
bool bind_convolution(const ConvolutionArguments& arguments, bridge_convolution* call,
                      CallError* error);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_CONVOLUTION_CALL_H_
