// Copies of images with few channels, with their padding and with channels last: then the positions
// of a line of the kernel and their channels are one run of memory, and no place is outside.
#ifndef BRIDGE_CONVOLUTION_PADDED_H_
#define BRIDGE_CONVOLUTION_PADDED_H_

#include <stdint.h>
#include <string.h>

#include "convolution/views.h"

namespace bridge::convolution {

constexpr int64_t kFewChannels = 8;

// The sizes of an image that windows read.
struct Padded {
  int64_t size[kSpace];
  double elements = 1;  // of an image with its channels

  explicit Padded(const bridge_convolution& call) {
    for (int d = 0; d < kSpace; ++d) {
      size[d] = (call.out[d] - 1) * call.stride[d] + (call.kernel[d] - 1) * call.dilation[d] + 1;
      elements *= static_cast<double>(size[d]);
    }
    elements *= static_cast<double>(call.in_channels);
  }
  double bytes(const bridge_convolution& call) const {
    return elements * static_cast<double>(element_bytes(call.x.dtype));
  }
};

// Returns true if a copy of x is faster than packing patches from where it lies.
inline bool gains_by_copy(const bridge_convolution& call) {
  if (call.kind == BRIDGE_CONVOLUTION_INPUT || call.groups != 1 || call.images == 0) return false;
  if (call.in_channels < 1 || call.in_channels > kFewChannels || call.out_channels < 2)
    return false;
  int64_t positions = 1;
  for (int d = 0; d < kSpace; ++d) {
    if (call.out[d] < 1 || call.kernel[d] < 1) return false;
    positions *= call.kernel[d];
  }
  if (positions < 4) return false;
  const Windows windows = forward_windows(call);
  const View view = patches_of(call.x, call.in, windows, call.images, call.in_channels, 0);
  return view.places != Places::none || call.x.channel_stride != 1;
}

template <class T>
void copy_line(const bridge_convolution& call, const Padded& padded, int64_t line, void* result) {
  const int64_t *const size = padded.size, *const low = call.padding, *const in = call.in;
  const int64_t channels = call.in_channels, width = size[2] * channels;
  const int64_t y = line % size[1] - low[1], z = line / size[1] % size[0] - low[0];
  const int64_t image = line / size[1] / size[0];
  T* const to = static_cast<T*>(result) + line * width;
  int64_t first = low[2] > 0 ? low[2] : 0, end = in[2] + low[2];
  if (end > size[2]) end = size[2];
  if (first > end || y < 0 || y >= in[1] || z < 0 || z >= in[0]) first = end = size[2];
  memset(to, 0, static_cast<size_t>(first * channels) * sizeof(T));
  memset(to + end * channels, 0, static_cast<size_t>((size[2] - end) * channels) * sizeof(T));
  if (first == end) return;
  const T* const from = static_cast<const T*>(call.x.data) + image * call.x.batch_stride +
                        z * call.x.stride[0] + y * call.x.stride[1];
  for (int64_t i = first; i < end; ++i)
    for (int64_t c = 0; c < channels; ++c)
      to[i * channels + c] = from[(i - low[2]) * call.x.stride[2] + c * call.x.channel_stride];
}

// Copies a line of all images: of call.images * size[0] * size[1].
inline void copy_line(const bridge_convolution& call, const Padded& padded, int64_t line,
                      void* to) {
  switch (element_bytes(call.x.dtype)) {
    case 2:
      return copy_line<uint16_t>(call, padded, line, to);
    case 4:
      return copy_line<uint32_t>(call, padded, line, to);
    default:
      return copy_line<uint64_t>(call, padded, line, to);
  }
}

// Returns the call on a copy of x.
inline bridge_convolution on_copy(const bridge_convolution& call, const Padded& padded,
                                  void* copy) {
  bridge_convolution all = call;
  all.x.data = copy;
  all.x.channel_stride = 1;
  int64_t stride = call.in_channels;
  for (int d = kSpace - 1; d >= 0; --d) {
    all.x.stride[d] = stride;
    stride *= padded.size[d];
    all.in[d] = padded.size[d];
    all.padding[d] = 0;
  }
  all.x.batch_stride = stride;
  return all;
}

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_PADDED_H_
