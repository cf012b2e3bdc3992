// A block of channels of a depthwise call for the gradient of weights, copied with channels last,
// so that vectors go along channels.
#ifndef BRIDGE_CONVOLUTION_CHANNELS_LAST_H_
#define BRIDGE_CONVOLUTION_CHANNELS_LAST_H_

#include <stdint.h>

#include "convolution/call.h"

namespace bridge::convolution {

inline int64_t places_of(const int64_t* size) { return size[0] * size[1] * size[2]; }

// Returns the bytes of the copies of `channels` channels of x and y.
inline int64_t bytes_of_block(const bridge_convolution& call, int64_t channels) {
  const int64_t x = places_of(call.in) * element_bytes(call.x.dtype);
  const int64_t y = places_of(call.out) * element_bytes(call.y.dtype);
  return (x + y) * call.images * channels + 64;
}

template <class T>
void copy_lines(const bridge_convolution_array& array, const int64_t* size, int64_t images,
                int64_t first, int64_t channels, T* to) {
  constexpr int64_t kAtOnce = 64;  // places whose copies stay in the nearest cache
  const T* const data = static_cast<const T*>(array.data) + first * array.channel_stride;
  for (int64_t n = 0; n < images; ++n)
    for (int64_t z = 0; z < size[0]; ++z)
      for (int64_t y = 0; y < size[1]; ++y)
        for (int64_t begin = 0; begin < size[2]; begin += kAtOnce) {
          const int64_t end = begin + kAtOnce < size[2] ? begin + kAtOnce : size[2];
          const T* const line =
              data + n * array.batch_stride + z * array.stride[0] + y * array.stride[1];
          for (int64_t c = 0; c < channels; ++c)
            for (int64_t x = begin; x < end; ++x)
              to[(x - begin) * channels + c] = line[c * array.channel_stride + x * array.stride[2]];
          to += (end - begin) * channels;
        }
}

// Copies channels [first, first + channels) of an array, and returns the array of the copy.
inline bridge_convolution_array copied(const bridge_convolution_array& array, const int64_t* size,
                                       int64_t images, int64_t first, int64_t channels, char* to) {
  switch (element_bytes(array.dtype)) {
    case 2:
      copy_lines(array, size, images, first, channels, reinterpret_cast<uint16_t*>(to));
      break;
    case 4:
      copy_lines(array, size, images, first, channels, reinterpret_cast<uint32_t*>(to));
      break;
    default:
      copy_lines(array, size, images, first, channels, reinterpret_cast<uint64_t*>(to));
  }
  bridge_convolution_array all = array;
  all.data = to;
  all.channel_stride = 1;
  all.stride[2] = channels;
  all.stride[1] = size[2] * channels;
  all.stride[0] = size[1] * all.stride[1];
  all.batch_stride = size[0] * all.stride[0];
  return all;
}

// Returns the call for channels [first, first + channels), with copies of x and y in `memory`.
inline bridge_convolution with_channels_last(const bridge_convolution& call, int64_t first,
                                             int64_t channels, char* memory) {
  bridge_convolution all = call;
  all.in_channels = all.out_channels = channels;
  all.groups = static_cast<decltype(all.groups)>(channels);
  const int64_t bytes = places_of(call.in) * call.images * channels * element_bytes(call.x.dtype);
  all.x = copied(call.x, call.in, call.images, first, channels, memory);
  all.y = copied(call.y, call.out, call.images, first, channels, memory + (bytes + 63) / 64 * 64);
  all.w.data =
      static_cast<char*>(call.w.data) + first * call.w.batch_stride * element_bytes(call.w.dtype);
  return all;
}

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_CHANNELS_LAST_H_
