// A convolution as products: two views of the operands, and the places of the result. No patch is
// stored: a view says where its elements lie, and which of them are outside of the array.
#ifndef BRIDGE_CONVOLUTION_VIEWS_H_
#define BRIDGE_CONVOLUTION_VIEWS_H_

#include <stdint.h>

#include "convolution/call.h"
#include "math/scalar.h"

namespace bridge::convolution {

constexpr int kAxisDims = kSpace + 1;

// The numbers of a side of a product in row-major order of four sizes, and the elements between
// neighbours in an array.
struct Axis {
  int64_t size[kAxisDims], stride[kAxisDims];

  BRIDGE_HD int64_t count() const {
    int64_t product = 1;
    for (int d = 0; d < kAxisDims; ++d) product *= size[d];
    return product;
  }
};

// The side of a view whose numbers are places: image and place. The other side has the positions of
// the kernel and, fastest, channels.
enum class Places : int32_t { none, lanes, terms };

// An operand: lanes are rows of a or columns of b, terms the contraction. An element is at `offset`
// plus the strides of its lane and its term. With places, it is +0 if a coordinate, start + place *
// place_step + position * window_step, is not in [0, size).
struct View {
  const char* data;
  int32_t dtype;
  Places places;
  int64_t offset;
  Axis lanes, terms;
  int64_t size[kSpace], start[kSpace], place_step[kSpace], window_step[kSpace];
};

// The product of one group: c = a b + bias.
struct Problem {
  View a, b;
  char* c;
  int32_t c_dtype, bias_dtype;
  Axis rows, cols;   // of c
  const char* bias;  // null if there is none
  int64_t bias_stride;
  bool has_row_bias;  // a number for each row, else for each column
  bool is_double;
  int64_t row_count, col_count, term_count;
};

// The products of all groups, one channel each: elements are `stride` apart from channel to
// channel.
struct Depthwise {
  Problem problem;
  int64_t channels, a_stride, b_stride, c_stride;
};

inline Axis axis_of(int64_t size0, int64_t stride0, const int64_t* size, const int64_t* stride) {
  return {{size0, size[0], size[1], size[2]}, {stride0, stride[0], stride[1], stride[2]}};
}
inline Axis axis_of(const int64_t* size, const int64_t* stride, int64_t last, int64_t last_stride) {
  return {{size[0], size[1], size[2], last}, {stride[0], stride[1], stride[2], last_stride}};
}
inline Axis axis_of(int64_t size, int64_t stride) { return {{1, 1, 1, size}, {0, 0, 0, stride}}; }

// Joins neighbouring dimensions that lie in memory like one, so that the last is as long as it can
// be.
inline Axis joined(const Axis& axis) {
  Axis all{{1, 1, 1, 1}, {0, 0, 0, 0}};
  int at = kAxisDims - 1;
  for (int d = kAxisDims - 1; d >= 0; --d) {
    if (axis.size[d] == 1) continue;
    if (all.size[at] != 1) {
      if (axis.stride[d] == all.size[at] * all.stride[at]) {
        all.size[at] *= axis.size[d];
        continue;
      }
      --at;
    }
    all.size[at] = axis.size[d];
    all.stride[at] = axis.stride[d];
  }
  return all;
}

// The geometry of one product: coordinates of the source of patches, and the weights and the result
// that belong to it.
struct Windows {
  int64_t places[kSpace], positions[kSpace];
  int64_t start[kSpace], place_step[kSpace], window_step[kSpace];
  int64_t first_position[kSpace], position_step[kSpace];  // of the kernel
  int64_t first_place[kSpace], result_step[kSpace];       // of the array with places
};

inline Windows forward_windows(const bridge_convolution& call) {
  Windows all{};
  for (int d = 0; d < kSpace; ++d) {
    all.places[d] = call.out[d];
    all.positions[d] = call.kernel[d];
    all.start[d] = -call.padding[d];
    all.place_step[d] = call.stride[d];
    all.window_step[d] = call.dilation[d];
    all.position_step[d] = all.result_step[d] = 1;
  }
  return all;
}

inline int64_t greatest_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b, b = rest;
  }
  return a;
}

// The number of classes of places of x, of which each is reached by positions of its own.
inline int64_t classes_of(const bridge_convolution& call) {
  if (call.kind != BRIDGE_CONVOLUTION_INPUT) return 1;
  int64_t classes = 1;
  for (int d = 0; d < kSpace; ++d)
    classes *= call.stride[d] < call.in[d] ? call.stride[d] : call.in[d];
  return classes;
}

// The places of x with the remainders of a class. Position k reaches x at i = r + q * stride from y
// at q + (r + padding - k * dilation) / stride, if that is a whole number.
inline Windows input_windows(const bridge_convolution& call, int64_t number) {
  Windows all{};
  for (int d = kSpace - 1; d >= 0; --d) {
    const int64_t stride = call.stride[d], dilation = call.dilation[d];
    const int64_t classes = stride < call.in[d] ? stride : call.in[d];
    const int64_t rest = number % classes, from = rest + call.padding[d];
    number /= classes;
    const int64_t divisor = greatest_divisor(stride, dilation), step = stride / divisor;
    int64_t first = 0;
    while (first < step && first < call.kernel[d] && (from - first * dilation) % stride != 0)
      ++first;
    const bool has_any = first < call.kernel[d] && (from - first * dilation) % stride == 0;
    all.places[d] = (call.in[d] - rest + stride - 1) / stride;
    all.positions[d] = has_any ? (call.kernel[d] - first + step - 1) / step : 0;
    all.start[d] = has_any ? (from - first * dilation) / stride : 0;
    all.place_step[d] = 1;
    all.window_step[d] = -(dilation / divisor);
    all.first_position[d] = first;
    all.position_step[d] = step;
    all.first_place[d] = rest;
    all.result_step[d] = stride;
  }
  return all;
}

// A depthwise convolution for values, one image and channel after the other. The box has the
// coordinates that any window reads: `extent` of them from `low` on.
struct Planes {
  const char* data;
  int32_t dtype, w_dtype, c_dtype, bias_dtype;
  int64_t images, channels;
  int64_t image_stride, channel_stride, stride[kSpace], size[kSpace];  // of the source
  Windows windows;
  const char* w;
  int64_t w_channel_stride, w_stride[kSpace];
  const char* bias;  // null if there is none
  int64_t bias_stride;
  char* c;
  int64_t c_image_stride, c_channel_stride, c_stride[kSpace];
  int64_t low[kSpace], extent[kSpace];

  int64_t terms() const {
    return windows.positions[0] * windows.positions[1] * windows.positions[2];
  }
  // Numbers of a line with one remainder by the places' step, and of a whole line.
  int64_t phase_width() const {
    const int64_t step = windows.place_step[kSpace - 1];
    return (extent[kSpace - 1] + step - 1) / step;
  }
  int64_t pitch() const { return phase_width() * windows.place_step[kSpace - 1]; }
  int64_t box_elements() const { return extent[0] * extent[1] * pitch(); }
};

// Returns true if a coordinate may be outside of the array.
inline bool leaves_array(const View& view, const Windows& windows) {
  for (int d = 0; d < kSpace; ++d) {
    if (windows.places[d] == 0 || windows.positions[d] == 0) continue;
    const int64_t far = (windows.positions[d] - 1) * view.window_step[d];
    const int64_t low = view.start[d] + (far < 0 ? far : 0);
    const int64_t high =
        view.start[d] + (windows.places[d] - 1) * view.place_step[d] + (far > 0 ? far : 0);
    if (low < 0 || high >= view.size[d]) return true;
  }
  return false;
}

// The patches of an array: lanes are places, terms positions and channels.
inline View patches_of(const bridge_convolution_array& array, const int64_t* size,
                       const Windows& windows, int64_t images, int64_t channels, int64_t first) {
  View view{};
  view.data = static_cast<const char*>(array.data);
  view.dtype = array.dtype;
  view.offset = first * array.channel_stride;
  int64_t place_stride[kSpace], window_stride[kSpace];
  for (int d = 0; d < kSpace; ++d) {
    view.size[d] = size[d];
    view.start[d] = windows.start[d];
    view.place_step[d] = windows.place_step[d];
    view.window_step[d] = windows.window_step[d];
    view.offset += windows.start[d] * array.stride[d];
    place_stride[d] = windows.place_step[d] * array.stride[d];
    window_stride[d] = windows.window_step[d] * array.stride[d];
  }
  view.lanes = axis_of(images, array.batch_stride, windows.places, place_stride);
  view.terms = axis_of(windows.positions, window_stride, channels, array.channel_stride);
  view.places = leaves_array(view, windows) ? Places::lanes : Places::none;
  if (view.places == Places::none) view.lanes = joined(view.lanes), view.terms = joined(view.terms);
  return view;
}

inline void exchange_sides(View* view) {
  const Axis lanes = view->lanes;
  view->lanes = view->terms;
  view->terms = lanes;
  if (view->places != Places::none)
    view->places = view->places == Places::lanes ? Places::terms : Places::lanes;
}

// Exchanges rows and columns: c' = b' a'. Each element stays the same.
inline Problem transposed(const Problem& given) {
  Problem all = given;
  all.a = given.b, all.b = given.a;
  all.rows = given.cols, all.cols = given.rows;
  all.row_count = given.col_count, all.col_count = given.row_count;
  all.has_row_bias = !given.has_row_bias;
  return all;
}

inline View matrix_of(const bridge_convolution_array& array, int64_t offset, const Axis& lanes,
                      const Axis& terms) {
  View view{};
  view.data = static_cast<const char*>(array.data);
  view.dtype = array.dtype;
  view.offset = offset;
  view.lanes = joined(lanes);
  view.terms = joined(terms);
  return view;
}

}  // namespace bridge::convolution

#endif  // BRIDGE_CONVOLUTION_VIEWS_H_
