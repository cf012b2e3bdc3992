// The products of a call: one for each group and each class of places.
#ifndef BRIDGE_CONVOLUTION_PROBLEM_H_
#define BRIDGE_CONVOLUTION_PROBLEM_H_

#include "convolution/views.h"

namespace bridge::convolution {

inline char* place_in(const bridge_convolution_array& array, int64_t offset) {
  return static_cast<char*>(array.data) + offset * element_bytes(array.dtype);
}

// Values at places: rows are images and places, columns the channels of the result.
inline Problem values_problem(const bridge_convolution& call, const Windows& windows,
                              int64_t group) {
  const bool is_forward = call.kind == BRIDGE_CONVOLUTION_FORWARD;
  const bridge_convolution_array& source = is_forward ? call.x : call.y;
  const bridge_convolution_array& result = is_forward ? call.y : call.x;
  const int64_t inputs = call.in_channels / call.groups, outputs = call.out_channels / call.groups;
  const int64_t from = is_forward ? inputs : outputs, to = is_forward ? outputs : inputs;
  Problem all{};
  all.a =
      patches_of(source, is_forward ? call.in : call.out, windows, call.images, from, group * from);
  int64_t offset = group * outputs * call.w.batch_stride, kernel_stride[kSpace];
  int64_t result_offset = group * to * result.channel_stride, result_stride[kSpace];
  for (int d = 0; d < kSpace; ++d) {
    offset += windows.first_position[d] * call.w.stride[d];
    kernel_stride[d] = windows.position_step[d] * call.w.stride[d];
    result_offset += windows.first_place[d] * result.stride[d];
    result_stride[d] = windows.result_step[d] * result.stride[d];
  }
  const int64_t to_stride = is_forward ? call.w.batch_stride : call.w.channel_stride;
  const int64_t from_stride = is_forward ? call.w.channel_stride : call.w.batch_stride;
  all.b = matrix_of(call.w, offset, axis_of(to, to_stride),
                    axis_of(windows.positions, kernel_stride, from, from_stride));
  all.c = place_in(result, result_offset);
  all.c_dtype = result.dtype;
  all.rows = joined(axis_of(call.images, result.batch_stride, windows.places, result_stride));
  all.cols = axis_of(to, result.channel_stride);
  if (call.bias.data != nullptr) {
    all.bias = place_in(call.bias, group * to * call.bias.channel_stride);
    all.bias_dtype = call.bias.dtype;
    all.bias_stride = call.bias.channel_stride;
  }
  return all;
}

// The gradient of weights: rows are positions and channels of x, columns the channels of y.
inline Problem weight_problem(const bridge_convolution& call, int64_t group) {
  const Windows windows = forward_windows(call);
  const int64_t inputs = call.in_channels / call.groups, outputs = call.out_channels / call.groups;
  Problem all{};
  all.a = patches_of(call.x, call.in, windows, call.images, inputs, group * inputs);
  exchange_sides(&all.a);
  all.b = matrix_of(call.y, group * outputs * call.y.channel_stride,
                    axis_of(outputs, call.y.channel_stride),
                    axis_of(call.images, call.y.batch_stride, call.out, call.y.stride));
  all.c = place_in(call.w, group * outputs * call.w.batch_stride);
  all.c_dtype = call.w.dtype;
  all.rows = joined(axis_of(call.kernel, call.w.stride, inputs, call.w.channel_stride));
  all.cols = axis_of(outputs, call.w.batch_stride);
  return all;
}

inline Problem problem_of(const bridge_convolution& call, int64_t number, int64_t group) {
  Problem all{};
  if (call.kind == BRIDGE_CONVOLUTION_WEIGHT)
    all = weight_problem(call, group);
  else if (call.kind == BRIDGE_CONVOLUTION_INPUT)
    all = values_problem(call, input_windows(call, number), group);
  else
    all = values_problem(call, forward_windows(call), group);
  all.is_double = is_double(call);
  all.row_count = all.rows.count();
  all.col_count = all.cols.count();
  all.term_count = all.b.terms.count();
  return all;
}

// A call whose groups have one channel of x and one of y each. The problem is that of the first.
inline bool is_depthwise(const bridge_convolution& call) {
  return call.in_channels == call.groups && call.out_channels == call.groups;
}

inline Depthwise depthwise_of(const bridge_convolution& call, int64_t number) {
  Depthwise all{};
  all.problem = problem_of(call, number, 0);
  all.channels = call.groups;
  const bool is_forward = call.kind == BRIDGE_CONVOLUTION_FORWARD;
  const bool is_weight = call.kind == BRIDGE_CONVOLUTION_WEIGHT;
  all.a_stride =
      call.kind == BRIDGE_CONVOLUTION_INPUT ? call.y.channel_stride : call.x.channel_stride;
  all.b_stride = is_weight ? call.y.channel_stride : call.w.batch_stride;
  all.c_stride = is_weight    ? call.w.batch_stride
                 : is_forward ? call.y.channel_stride
                              : call.x.channel_stride;
  return all;
}

// Describes a depthwise call for values, for a class of places.
inline Planes planes_of(const bridge_convolution& call, int64_t number) {
  const bool is_forward = call.kind == BRIDGE_CONVOLUTION_FORWARD;
  const bridge_convolution_array& source = is_forward ? call.x : call.y;
  const bridge_convolution_array& result = is_forward ? call.y : call.x;
  Planes all{};
  all.windows = is_forward ? forward_windows(call) : input_windows(call, number);
  all.data = static_cast<const char*>(source.data);
  all.w = static_cast<const char*>(call.w.data);
  all.c = static_cast<char*>(result.data);
  all.bias = static_cast<const char*>(call.bias.data);
  all.dtype = source.dtype, all.w_dtype = call.w.dtype, all.c_dtype = result.dtype;
  all.bias_dtype = call.bias.dtype;
  all.bias_stride = call.bias.channel_stride;
  all.images = call.images, all.channels = call.groups;
  all.image_stride = source.batch_stride, all.channel_stride = source.channel_stride;
  all.c_image_stride = result.batch_stride, all.c_channel_stride = result.channel_stride;
  all.w_channel_stride = call.w.batch_stride;
  for (int d = 0; d < kSpace; ++d) {
    const Windows& windows = all.windows;
    const int64_t far = (windows.positions[d] - 1) * windows.window_step[d];
    all.size[d] = is_forward ? call.in[d] : call.out[d];
    all.stride[d] = source.stride[d];
    all.w_stride[d] = call.w.stride[d];
    all.c_stride[d] = result.stride[d];
    all.low[d] = windows.start[d] + (far < 0 ? far : 0);
    all.extent[d] = (windows.places[d] - 1) * windows.place_step[d] + (far < 0 ? -far : far) + 1;
  }
  return all;
}

// True for a call of planes with few terms, whose box stays in a cache.
inline bool has_planes(const bridge_convolution& call, const Planes& planes, int64_t most_terms) {
  if (call.images == 0 || call.groups == 0) return false;
  constexpr int64_t kMostBox = 1 << 17;
  int64_t elements = 1;
  for (int d = 0; d < kSpace; ++d) {
    if (planes.windows.positions[d] == 0 || planes.windows.places[d] == 0) return false;
    if (planes.windows.place_step[d] > kMostBox || planes.extent[d] > kMostBox) return false;
    elements *= planes.extent[d];
    if (elements > kMostBox) return false;
  }
  return planes.terms() <= most_terms && planes.box_elements() <= 2 * kMostBox;
}

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_PROBLEM_H_
