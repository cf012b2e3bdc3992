/* Convolutions and their gradients: a part of the C API (bridge.h). */
#ifndef BRIDGE_CONVOLUTION_H_
#define BRIDGE_CONVOLUTION_H_

#include <bridge/bridge.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A convolution of `images` images in up to three spatial dimensions, or a gradient of one. Fewer
 * dimensions are the last; the others have sizes, strides and dilations of 1 and no padding. With
 * the sizes of a group, x is [images, in_channels, in], w [out_channels, in_channels / groups,
 * kernel] and y [images, out_channels, out]; bias has a number for each channel of the result, and
 * no data if there is none. The strides of batch and channel of w are those of its first and second
 * dimension; bias has the stride of a channel alone. Strides count elements, and may be 0 or
 * negative in operands. x at place p * stride - padding + position * dilation meets the weight of a
 * position; a place outside of x is +0, and its term counts.
 *
 * Of the kind FORWARD, y is written: an element is the sum of a product (above) over the positions
 * of the kernel in row-major order and, fastest, over the channels of the group in x, plus the
 * bias, rounded once. Of INPUT, x: the sum over the positions that reach the element, and, fastest,
 * over the channels of the group in y, plus the bias; positions that the stride leaves out are
 * absent, and places outside of y are +0 and count. Of WEIGHT, w: the sum over images and places of
 * y in row-major order. The result overlaps no operand. The arithmetic and tensor_cores are those
 * of a product. */
enum { BRIDGE_CONVOLUTION_DIMS = 3 };
typedef enum bridge_convolution_kind {
  BRIDGE_CONVOLUTION_FORWARD = 0,
  BRIDGE_CONVOLUTION_INPUT = 1,
  BRIDGE_CONVOLUTION_WEIGHT = 2
} bridge_convolution_kind;
typedef struct bridge_convolution_array {
  void* data;
  int32_t dtype; /* bridge_dtype, floating */
  int64_t batch_stride, channel_stride;
  int64_t stride[BRIDGE_CONVOLUTION_DIMS];
} bridge_convolution_array;
typedef struct bridge_convolution {
  int32_t kind;
  int32_t tensor_cores; /* 0 or 1 */
  int64_t images, in_channels, out_channels, groups;
  int64_t in[BRIDGE_CONVOLUTION_DIMS], kernel[BRIDGE_CONVOLUTION_DIMS],
      out[BRIDGE_CONVOLUTION_DIMS];
  int64_t stride[BRIDGE_CONVOLUTION_DIMS], padding[BRIDGE_CONVOLUTION_DIMS],
      dilation[BRIDGE_CONVOLUTION_DIMS];
  bridge_convolution_array x, w, bias, y;
} bridge_convolution;
bridge_status bridge_convolution_cpu(const bridge_convolution* call,
                                     const bridge_executor* executor);
/* The same on CUDA, without tensor_cores. The workspace is as for a product: it runs with less than
 * bridge_convolution_cuda_workspace(call) bytes too, on fewer multiprocessors, and
 * bridge_convolution_cuda_least_workspace(call) are enough. Both are 0 if no sum has more than 256
 * terms. */
size_t bridge_convolution_cuda_workspace(const bridge_convolution* call);
size_t bridge_convolution_cuda_least_workspace(const bridge_convolution* call);
bridge_status bridge_convolution_cuda(const bridge_convolution* call, void* workspace,
                                      size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* BRIDGE_CONVOLUTION_H_ */
