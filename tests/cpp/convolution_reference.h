// Random calls of convolutions, with their results by a plain evaluation: the terms of each element
// in the order of the definition, and the sum of a product over them.
#ifndef BRIDGE_TESTS_CPP_CONVOLUTION_REFERENCE_H_
#define BRIDGE_TESTS_CPP_CONVOLUTION_REFERENCE_H_

#include <bridge/convolution.h>

#include <algorithm>
#include <array>
#include <utility>

#include "product_reference.h"

namespace convolution_test {

using product_test::get;
using product_test::pick;
using product_test::put;

constexpr int kDims = BRIDGE_CONVOLUTION_DIMS;
using Index = std::array<int64_t, kDims + 2>;  // batch, channel, place

struct Array {
  std::vector<char> memory;
  bridge_convolution_array array{};
  Index size{};

  // Lays out the dimensions in a random order, with gaps and, in operands, reversed dimensions.
  void lay_out(int32_t dtype, const Index& given, bool is_operand) {
    std::array<int, kDims + 2> order{};
    for (int d = 0; d < kDims + 2; ++d) order[static_cast<size_t>(d)] = d;
    const int64_t kind = pick(4);
    if (kind == 0) std::rotate(order.begin() + 1, order.begin() + 2, order.end());  // channels last
    if (kind == 1) std::shuffle(order.begin(), order.end(), product_test::random_words);
    lay_out(dtype, given, is_operand, order, kind, pick(4) == 0 ? 2 : 1);
  }
  // Lays out adjacent channels, or adjacent dimensions 0 if `is_turned`.
  void lay_out_adjacent(int32_t dtype, const Index& given, bool is_turned) {
    lay_out(dtype, given, false,
            is_turned ? std::array<int, kDims + 2>{4, 3, 2, 1, 0}
                      : std::array<int, kDims + 2>{0, 2, 3, 4, 1},
            0, 1);
  }
  void lay_out(int32_t dtype, const Index& given, bool is_operand,
               const std::array<int, kDims + 2>& order, int64_t kind, int64_t elements) {
    size = given;
    array.dtype = dtype;
    int64_t first = 0;
    for (int i = kDims + 1; i >= 0; --i) {
      const int d = order[static_cast<size_t>(i)];
      const int64_t length = size[static_cast<size_t>(d)];
      int64_t& stride = *stride_of(d);
      stride = elements;
      elements *= length > 0 ? length : 1;
      if (kind == 2 && pick(3) == 0) elements += pick(5);
      if (!is_operand || length == 0 || kind != 3 || pick(3) != 0) continue;
      first += (length - 1) * stride;
      stride = -stride;
    }
    memory.assign(static_cast<size_t>((elements + 16) * bridge::element_bytes(dtype)), 0x55);
    array.data = memory.data() + first * bridge::element_bytes(dtype);
  }
  void fill() {
    const auto bytes = static_cast<size_t>(bridge::element_bytes(array.dtype));
    for (size_t at = 0; at + bytes <= memory.size(); at += bytes)
      put(memory.data() + at, array.dtype, product_test::number());
  }
  int64_t* stride_of(int d) {
    return d == 0 ? &array.batch_stride : d == 1 ? &array.channel_stride : &array.stride[d - 2];
  }
  char* at(const Index& index) const {
    int64_t offset = index[0] * array.batch_stride + index[1] * array.channel_stride;
    for (size_t d = 0; d < kDims; ++d) offset += index[d + 2] * array.stride[d];
    return static_cast<char*>(array.data) + offset * bridge::element_bytes(array.dtype);
  }
  double value(const Index& index) const { return get(at(index), array.dtype); }
};

struct Case {
  bridge_convolution call{};
  Array x, w, bias, y, expected;

  Array& result() { return call.kind == 0 ? y : call.kind == 1 ? x : w; }
  const Array& result() const { return const_cast<Case*>(this)->result(); }

  std::string words() const {
    std::string text = "kind " + std::to_string(call.kind);
    const auto add = [&](const char* name, const int64_t* numbers, int count) {
      text += std::string(", ") + name;
      for (int i = 0; i < count; ++i) text += " " + std::to_string(numbers[i]);
    };
    add("x", x.size.data(), kDims + 2);
    add("w", w.size.data(), kDims + 2);
    add("y", y.size.data(), kDims + 2);
    add("stride", call.stride, kDims);
    add("padding", call.padding, kDims);
    add("dilation", call.dilation, kDims);
    add("groups", &call.groups, 1);
    const int64_t dtypes[] = {x.array.dtype, w.array.dtype, y.array.dtype,
                              call.bias.data == nullptr ? -1 : bias.array.dtype};
    add("dtypes", dtypes, 4);
    return text;
  }
};

template <class Visit>
void each_index(const int64_t* size, const Visit& visit) {
  for (int64_t i = 0; i < size[0]; ++i)
    for (int64_t j = 0; j < size[1]; ++j)
      for (int64_t k = 0; k < size[2]; ++k) visit(std::array<int64_t, kDims>{i, j, k});
}

// The terms of an element of the result.
using Terms = std::vector<std::pair<double, double>>;

inline Terms terms_of(const Case& given, const Index& index) {
  const bridge_convolution& call = given.call;
  const int64_t inputs = call.in_channels / call.groups, outputs = call.out_channels / call.groups;
  Terms terms;
  const auto coordinate = [&](size_t d, int64_t place, int64_t position) {
    return place * call.stride[d] - call.padding[d] + position * call.dilation[d];
  };
  const auto x_at = [&](int64_t image, int64_t channel, const int64_t* place,
                        const int64_t* position) {
    Index at{image, channel};
    for (size_t d = 0; d < kDims; ++d) {
      at[d + 2] = coordinate(d, place[d], position[d]);
      if (at[d + 2] < 0 || at[d + 2] >= call.in[d]) return 0.0;
    }
    return given.x.value(at);
  };
  if (call.kind == BRIDGE_CONVOLUTION_FORWARD) {
    const int64_t group = outputs == 0 ? 0 : index[1] / outputs;
    each_index(call.kernel, [&](const std::array<int64_t, kDims>& position) {
      for (int64_t c = 0; c < inputs; ++c)
        terms.emplace_back(x_at(index[0], group * inputs + c, &index[2], position.data()),
                           given.w.value({index[1], c, position[0], position[1], position[2]}));
    });
  } else if (call.kind == BRIDGE_CONVOLUTION_INPUT) {
    const int64_t group = inputs == 0 ? 0 : index[1] / inputs;
    each_index(call.kernel, [&](const std::array<int64_t, kDims>& position) {
      Index at{index[0]};
      bool is_inside = true;
      for (size_t d = 0; d < kDims; ++d) {
        const int64_t from = index[d + 2] + call.padding[d] - position[d] * call.dilation[d];
        if (from % call.stride[d] != 0) return;
        at[d + 2] = from / call.stride[d];
        is_inside = is_inside && at[d + 2] >= 0 && at[d + 2] < call.out[d];
      }
      for (int64_t c = 0; c < outputs; ++c) {
        at[1] = group * outputs + c;
        terms.emplace_back(is_inside ? given.y.value(at) : 0.0,
                           given.w.value({at[1], index[1] - group * inputs, position[0],
                                          position[1], position[2]}));
      }
    });
  } else {
    const int64_t group = outputs == 0 ? 0 : index[0] / outputs;
    for (int64_t n = 0; n < call.images; ++n)
      each_index(call.out, [&](const std::array<int64_t, kDims>& place) {
        terms.emplace_back(x_at(n, group * inputs + index[1], place.data(), &index[2]),
                           given.y.value({n, index[0], place[0], place[1], place[2]}));
      });
  }
  return terms;
}

template <class Real, class Leaf>
void expected_of(Case* given, const Leaf& leaf) {
  Array& result = given->expected;
  const Index& size = result.size;
  for (int64_t n = 0; n < size[0]; ++n)
    for (int64_t c = 0; c < size[1]; ++c)
      each_index(&size[2], [&](const std::array<int64_t, kDims>& place) {
        const Index index{n, c, place[0], place[1], place[2]};
        const Terms terms = terms_of(*given, index);
        const auto term = [&](int64_t p) {
          const auto& [left, right] = terms[static_cast<size_t>(p)];
          return std::pair<Real, Real>(static_cast<Real>(left), static_cast<Real>(right));
        };
        const auto count = static_cast<int64_t>(terms.size());
        Real sum = count == 0 ? Real(0) : *product_test::tree<Real>(0, count, leaf, term);
        if (given->call.bias.data != nullptr) sum += static_cast<Real>(given->bias.value({0, c}));
        const auto write = [&](auto rounded) {
          std::memcpy(result.at(index), &rounded, sizeof rounded);
        };
        using bridge::math::round_to;
        if (result.array.dtype == BRIDGE_FLOAT16) write(round_to<bridge::math::float16>(sum));
        if (result.array.dtype == BRIDGE_BFLOAT16) write(round_to<bridge::math::bfloat16>(sum));
        if (result.array.dtype == BRIDGE_FLOAT32) write(round_to<float>(sum));
        if (result.array.dtype == BRIDGE_FLOAT64) write(round_to<double>(sum));
      });
}

// The sizes of a draw: most numbers of channels, and most places in a dimension.
struct Limits {
  int64_t images, inputs, outputs, places, positions;
};

// Draws all but the sums. With tensor cores the operands have the same 16-bit dtype, and no array
// is float64. Above 1, `step` divides the channels of a group, which are adjacent.
inline Case random_operands(int32_t kind, const Limits& most, bool has_tensor_cores,
                            int64_t step = 1) {
  Case all;
  auto& [call, x, w, bias, y, expected] = all;
  product_test::rare_among = pick(2) == 0 ? 400 : 1 << 20;
  call.kind = kind;
  call.tensor_cores = has_tensor_cores ? 1 : 0;
  call.groups = pick(3) != 0 ? 1 : 1 + pick(4);
  const bool is_depthwise = pick(4) == 0;
  const auto size = [](int64_t end) { return pick(40) == 0 ? 0 : 1 + pick(end); };
  if (is_depthwise) call.groups = 1 + pick(most.inputs);
  call.images = size(most.images);
  const auto channels = [&](int64_t end) {
    return (size(end / call.groups + 1) + step - 1) / step * step;
  };
  call.in_channels = call.groups * (is_depthwise ? 1 : channels(most.inputs));
  call.out_channels = call.groups * (is_depthwise ? 1 + pick(2) : channels(most.outputs));
  const auto dims = 1 + static_cast<int>(pick(3));
  for (int d = 0; d < kDims; ++d) {
    const bool is_used = d >= kDims - dims;
    call.in[d] = call.kernel[d] = call.out[d] = call.stride[d] = call.dilation[d] = 1;
    if (!is_used) continue;
    call.kernel[d] = size(most.positions);
    if (pick(2) == 0) call.stride[d] = 1 + pick(4);
    if (pick(3) == 0) call.dilation[d] = 1 + pick(3);
    if (pick(2) == 0) call.padding[d] = pick(5) - 1;
    call.in[d] = size(dims == 3 ? most.places / 3 + 1 : most.places);
    const int64_t after = pick(3) == 0 ? pick(3) : call.padding[d];
    const int64_t span = call.in[d] + call.padding[d] + after -
                         call.dilation[d] * (std::max<int64_t>(call.kernel[d], 1) - 1) - 1;
    call.out[d] = span < 0 ? 0 : span / call.stride[d] + 1;
    if (pick(3) == 0) call.padding[d] = (call.kernel[d] - 1) / 2 * call.dilation[d];
  }
  const auto dtype = [&] { return static_cast<int32_t>(pick(has_tensor_cores ? 3 : 4)); };
  const int32_t same = has_tensor_cores ? static_cast<int32_t>(pick(2)) : dtype();
  const bool is_mixed = pick(3) == 0;
  const auto drawn = [&](bool is_result) {
    return is_mixed && (is_result || !has_tensor_cores) ? dtype() : same;
  };
  const Index x_size{call.images, call.in_channels, call.in[0], call.in[1], call.in[2]};
  const Index w_size{call.out_channels, call.in_channels / call.groups, call.kernel[0],
                     call.kernel[1], call.kernel[2]};
  const Index y_size{call.images, call.out_channels, call.out[0], call.out[1], call.out[2]};
  const auto lay_out = [&](Array& array, int of, const Index& all_sizes) {
    if (step == 1)
      array.lay_out(drawn(kind == of), all_sizes, kind != of);
    else
      array.lay_out_adjacent(drawn(kind == of), all_sizes, &array == &w && pick(2) == 0);
  };
  lay_out(x, 1, x_size), lay_out(w, 2, w_size), lay_out(y, 0, y_size);
  bias.lay_out(drawn(true), {1, kind == 0 ? call.out_channels : call.in_channels, 1, 1, 1}, true);
  x.fill(), w.fill(), y.fill(), bias.fill();
  if (kind != 2 && pick(2) == 0) call.bias = bias.array;
  call.x = x.array, call.w = w.array, call.y = y.array;
  expected = all.result();
  const char* const first = all.result().memory.data();
  expected.array.data =
      expected.memory.data() + (static_cast<const char*>(all.result().array.data) - first);
  return all;
}

inline Case random_case(int32_t kind, const Limits& most) {
  Case all = random_operands(kind, most, false);
  bool is_double = all.call.bias.data != nullptr && all.bias.array.dtype == BRIDGE_FLOAT64;
  for (const Array* each : {&all.x, &all.w, &all.y})
    is_double = is_double || each->array.dtype == BRIDGE_FLOAT64;
  if (is_double)
    expected_of<double>(&all, product_test::Chain{false});
  else
    expected_of<float>(&all, product_test::Chain{false});
  return all;
}

}  // namespace convolution_test

#endif  // BRIDGE_TESTS_CPP_CONVOLUTION_REFERENCE_H_
