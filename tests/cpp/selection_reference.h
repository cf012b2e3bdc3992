// Random choices of columns, and a plain evaluation: a sort of the whole row.
#ifndef BRIDGE_TESTS_CPP_SELECTION_REFERENCE_H_
#define BRIDGE_TESTS_CPP_SELECTION_REFERENCE_H_

#include <bridge/selection.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "drivers/dtypes.h"
#include "math/convert.h"
#include "math/logarithm.h"
#include "math/philox.h"

namespace bridge::selection_reference {

inline std::mt19937_64 random_words;

inline int64_t pick(int64_t end) {
  return static_cast<int64_t>(random_words() % static_cast<uint64_t>(end));
}

// Half of the rows have few different numbers, so that many are equal.
inline double number(bool is_coarse) {
  static const double rare[] = {0.0, -0.0, INFINITY, -INFINITY, 1e30, -1e-30, 1e-42, 65000.0};
  if (pick(60) == 0) return rare[pick(8)];
  if (pick(3000) == 0) return NAN;
  if (is_coarse) return static_cast<double>(pick(5)) - 2;
  return std::ldexp(static_cast<double>(pick(1 << 26) - (1 << 25)), -23);
}

template <class Use>
auto with_type(int32_t dtype, const Use& use) {
  if (dtype == BRIDGE_FLOAT16) return use(math::float16{});
  if (dtype == BRIDGE_BFLOAT16) return use(math::bfloat16{});
  if (dtype == BRIDGE_FLOAT32) return use(float{});
  return use(double{});
}

inline void put(char* to, int32_t dtype, double value) {
  with_type(dtype, [&](auto kind) {
    const auto rounded = math::round_to<decltype(kind)>(value);
    std::memcpy(to, &rounded, sizeof rounded);
  });
}

inline double get(const void* from, int64_t at, int32_t dtype) {
  return with_type(dtype, [&](auto kind) {
    std::memcpy(&kind, static_cast<const char*>(from) + at * element_bytes(dtype), sizeof kind);
    return math::to_double(kind);
  });
}

template <class Allocate>
void make_call(int64_t rows, int64_t cols, bool is_draw, const Allocate& allocate,
               bridge_selection* call) {
  *call = {};
  call->rows = rows, call->cols = cols;
  call->count = is_draw ? 1 : 1 + pick(std::min<int64_t>(cols, 64));
  call->dtype = static_cast<int32_t>(pick(4));
  call->index_dtype = pick(2) == 0 ? BRIDGE_INT32 : BRIDGE_INT64;
  const int64_t bytes = element_bytes(call->dtype);
  char* const x = allocate(rows * cols * bytes);
  for (int64_t row = 0; row < rows; ++row) {
    const bool is_coarse = pick(2) == 0;
    for (int64_t i = row * cols; i < (row + 1) * cols; ++i)
      put(x + i * bytes, call->dtype, number(is_coarse));
  }
  call->x = x;
  const int64_t result = rows * call->count * element_bytes(call->index_dtype);
  call->result = allocate(result);
  std::memset(call->result, 0x55, static_cast<size_t>(result));
  if (!is_draw) return;
  auto* const words = reinterpret_cast<uint32_t*>(allocate(rows * 16));
  for (int64_t i = 0; i < rows * 4; ++i) words[i] = static_cast<uint32_t>(random_words());
  call->words = words;
  static const double temperatures[] = {1, 0.7, 2.5, 0, 1e-3};
  static const double parts[] = {1, 0.9, 0.5, 1e-9, 0.999};
  static const double least[] = {0, 0, 0.05, 1};
  call->temperature = temperatures[pick(5)];
  call->top_k = pick(2) == 0 ? 0 : 1 + pick(cols);
  call->top_p = parts[pick(5)];
  call->min_p = least[pick(4)];
}

// Returns the columns from the largest number to the smallest; NaN is first, and equal numbers are
// in the order of their columns.
inline std::vector<int64_t> sorted(const bridge_selection& call, const std::vector<double>& x) {
  std::vector<int64_t> order(static_cast<size_t>(call.cols));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double of_a = x[static_cast<size_t>(a)], of_b = x[static_cast<size_t>(b)];
    return (std::isnan(of_a) && !std::isnan(of_b)) || of_a > of_b;
  });
  return order;
}

inline int64_t drawn(const bridge_selection& call, int64_t row, const std::vector<double>& x,
                     std::vector<int64_t> order) {
  const auto at = [&](int64_t col) { return x[static_cast<size_t>(col)]; };
  const double largest = at(order[0]);
  if (std::isnan(largest) || largest == -INFINITY) return -1;
  if (call.temperature == 0) return order[0];
  const auto below = [&](int64_t col) {
    return at(col) == largest ? 0.0 : (at(col) - largest) / call.temperature;
  };
  if (call.top_k > 0) order.resize(static_cast<size_t>(call.top_k));
  if (call.top_p < 1) {
    const auto weight = [&](int64_t col) {
      return static_cast<uint64_t>(math::exp(below(col)) * 0x1p40 + 0.5);
    };
    uint64_t whole = 0, sum = 0;
    for (const int64_t col : order) whole += weight(col);
    size_t kept = 0;
    while (kept < order.size() &&
           (kept == 0 || static_cast<double>(sum) < call.top_p * static_cast<double>(whole)))
      sum += weight(order[kept++]);
    order.resize(kept);
  }
  std::sort(order.begin(), order.end());
  const auto* const word = static_cast<const uint32_t*>(call.words) + 4 * row;
  int64_t chosen = -1;
  double best = -INFINITY;
  for (const int64_t col : order) {
    if (math::exp(below(col)) < call.min_p) continue;
    const math::Philox words =
        math::philox(word[0] | uint64_t{word[1]} << 32, word[2] | uint64_t{word[3]} << 32,
                     static_cast<uint64_t>(col / 4));
    const double uniform = (static_cast<double>(words.words[col % 4]) + 0.5) * 0x1p-32;
    const double score = below(col) - math::log(-math::log(uniform));
    if (score > best) best = score, chosen = col;
  }
  return chosen;
}

inline bool is_right(const bridge_selection& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    std::vector<double> x;
    for (int64_t col = 0; col < call.cols; ++col)
      x.push_back(get(call.x, row * call.cols + col, call.dtype));
    std::vector<int64_t> wanted = sorted(call, x);
    if (call.words != nullptr) wanted = {drawn(call, row, x, wanted)};
    for (int64_t place = 0; place < call.count; ++place) {
      const int64_t at = row * call.count + place;
      const int64_t found = call.index_dtype == BRIDGE_INT32
                                ? static_cast<const int32_t*>(call.result)[at]
                                : static_cast<const int64_t*>(call.result)[at];
      if (found != wanted[static_cast<size_t>(place)]) return false;
    }
  }
  return true;
}

inline std::string describe(const bridge_selection& call) {
  std::string text = call.words == nullptr ? "largest: " : "draw: ";
  for (const int64_t each : {call.rows, call.cols, call.count, int64_t{call.dtype}, call.top_k})
    text += std::to_string(each) + " ";
  for (const double each : {call.temperature, call.top_p, call.min_p})
    text += std::to_string(each) + " ";
  return text;
}

// Calls use(call, words) with calls that are refused, and words of the message.
template <class Use>
void for_refusals(const Use& use) {
  alignas(8) static char memory[64] = {};
  bridge_selection call{};
  call.rows = call.cols = call.count = 1;
  call.dtype = BRIDGE_FLOAT32;
  call.index_dtype = BRIDGE_INT64;
  call.x = call.result = memory;
  call.temperature = call.top_p = 1;
  const auto changed = [&](const char* words, const auto& change) {
    bridge_selection other = call;
    change(other);
    use(&other, words);
  };
  changed("negative", [](bridge_selection& c) { c.rows = -1; });
  changed("floating", [](bridge_selection& c) { c.dtype = BRIDGE_INT32; });
  changed("int64", [](bridge_selection& c) { c.index_dtype = BRIDGE_UINT8; });
  changed("too many columns", [](bridge_selection& c) { c.count = 2; });
  changed("too many columns", [](bridge_selection& c) { c.cols = c.count = 65; });
  call.words = memory;
  changed("temperature", [](bridge_selection& c) { c.temperature = -1; });
  changed("temperature", [](bridge_selection& c) { c.temperature = NAN; });
  changed("top_p", [](bridge_selection& c) { c.top_p = 0; });
  changed("min_p", [](bridge_selection& c) { c.min_p = 1.5; });
  changed("top_k", [](bridge_selection& c) { c.top_k = 2; });
  changed("columns", [](bridge_selection& c) { c.cols = 1 << 24, c.top_p = 0.5; });
}

}  // namespace bridge::selection_reference

#endif  // BRIDGE_TESTS_CPP_SELECTION_REFERENCE_H_
