// Random calls of matrix products, with their results by a plain evaluation in the order that the
// numerics define.
#ifndef BRIDGE_TESTS_CPP_PRODUCT_REFERENCE_H_
#define BRIDGE_TESTS_CPP_PRODUCT_REFERENCE_H_

#include <bridge/bridge.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "drivers/dtypes.h"
#include "math/convert.h"

namespace product_test {

using bridge::element_bytes;
using bridge::math::bfloat16;
using bridge::math::float16;

inline std::mt19937_64 random_words;
inline int64_t pick(int64_t end) {
  return static_cast<int64_t>(random_words() % static_cast<uint64_t>(end));
}

// A case draws 8 rare numbers among so many. A deep sum with a NaN among its terms shows no order.
inline int64_t rare_among = 400;

inline double number() {
  static const double rare[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e30, -1e-30, 1e-42};
  const int64_t kind = pick(rare_among);
  if (kind < 8) return rare[kind];
  return std::ldexp(static_cast<double>(pick(1 << 26) - (1 << 25)),
                    -25 + static_cast<int>(pick(6)));
}

inline void put(char* to, int32_t dtype, double value) {
  using bridge::math::round_to;
  const auto write = [&](auto rounded) { std::memcpy(to, &rounded, sizeof rounded); };
  if (dtype == BRIDGE_FLOAT16) return write(round_to<float16>(value));
  if (dtype == BRIDGE_BFLOAT16) return write(round_to<bfloat16>(value));
  if (dtype == BRIDGE_FLOAT32) return write(round_to<float>(value));
  write(round_to<double>(value));
}

inline double get(const char* from, int32_t dtype) {
  using bridge::math::to_double;
  const auto read = [&](auto kind) {
    std::memcpy(&kind, from, sizeof kind);
    return to_double(kind);
  };
  if (dtype == BRIDGE_FLOAT16) return read(float16{});
  if (dtype == BRIDGE_BFLOAT16) return read(bfloat16{});
  if (dtype == BRIDGE_FLOAT32) return read(float{});
  return read(double{});
}

struct Array {
  std::vector<char> memory;
  bridge_product_array array{};

  // Lays out [batches.., rows, cols]; `kind`: 0 dense, 1 transposed, 2 apart, 3 reversed rows.
  void lay_out(const bridge_product& call, int32_t dtype, int64_t rows, int64_t cols, int64_t kind,
               bool has_batches) {
    array.dtype = dtype;
    const int64_t gap = kind == 2 ? 3 : 1;
    array.col_stride = kind == 1 ? rows : gap;
    array.row_stride = kind == 1 ? 1 : cols * gap + (kind == 2 ? 5 : 0);
    const int64_t each = (rows + 2) * (cols + 8) * gap + 8;
    int64_t elements = each;
    for (int32_t d = call.dims - 1; d >= 0; --d) {
      array.stride[d] = has_batches ? elements : 0;
      if (has_batches) elements *= call.size[d] > 0 ? call.size[d] : 1;
    }
    memory.assign(static_cast<size_t>(elements * element_bytes(dtype)), 0x55);
    array.data = memory.data();
    if (kind == 3 && rows > 0) {
      array.data = memory.data() + (rows - 1) * array.row_stride * element_bytes(dtype);
      array.row_stride = -array.row_stride;
    }
  }
  void fill() {
    const int64_t bytes = element_bytes(array.dtype);
    for (size_t at = 0; at + static_cast<size_t>(bytes) <= memory.size();
         at += static_cast<size_t>(bytes))
      put(memory.data() + at, array.dtype, number());
  }
  // Puts zeros behind a diagonal (0), in some rows and columns (1) or anywhere (2).
  void hide(int64_t rows, int64_t cols, int64_t kind) {
    if (array.stride[0] != 0 && kind != 2) kind = 1;
    const int64_t step = 1 + pick(5);
    const int64_t bytes = element_bytes(array.dtype);
    if (kind == 2) {
      for (size_t at = 0; at + static_cast<size_t>(bytes) <= memory.size();
           at += static_cast<size_t>(bytes))
        if (pick(step) == 0) put(memory.data() + at, array.dtype, pick(2) == 0 ? 0.0 : -0.0);
      return;
    }
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        if (kind == 0 ? j > i * step : i % 7 == step || j % 9 == step || j / 256 % 2 == 1)
          put(at(0, i, j), array.dtype, 0.0);
  }
  char* at(int64_t offset, int64_t row, int64_t col) const {
    return static_cast<char*>(array.data) +
           (offset + row * array.row_stride + col * array.col_stride) * element_bytes(array.dtype);
  }
};

// A plain statement of the order: chains of 256 terms, then halves at powers of two.
// Absent terms, and sums of absent terms alone, are absent.
struct Chain {
  bool skips_zeros;

  template <class Real, class Term>
  std::optional<Real> sum(int64_t first, int64_t end, const Term& term) const {
    std::optional<Real> sum;
    for (int64_t p = first; p < end; ++p) {
      const auto [left, right] = term(p);
      if (skips_zeros && left == 0) continue;
      sum = sum ? std::fma(left, right, *sum) : left * right;
    }
    return sum;
  }
};
template <class Real, class Leaf, class Term>
std::optional<Real> tree(int64_t first, int64_t end, const Leaf& leaf, const Term& term) {
  if (end - first <= 256) return leaf.template sum<Real>(first, end, term);
  int64_t half = 256;
  while (2 * half < end - first) half *= 2;
  const std::optional<Real> left = tree<Real>(first, first + half, leaf, term);
  const std::optional<Real> right = tree<Real>(first + half, end, leaf, term);
  return !left ? right : !right ? left : *left + *right;
}

template <class Real, class Leaf>
void expected_of(const bridge_product& call, const Array& a, const Array& b, const Array& bias,
                 const Leaf& leaf, Array* c) {
  int64_t batches = 1;
  for (int32_t d = 0; d < call.dims; ++d) batches *= call.size[d];
  for (int64_t batch = 0; batch < batches; ++batch) {
    const auto offset = [&](const Array& array) {
      int64_t sum = 0, rest = batch;
      for (int32_t d = call.dims - 1; d >= 0; --d) {
        sum += rest % call.size[d] * array.array.stride[d];
        rest /= call.size[d];
      }
      return sum;
    };
    for (int64_t i = 0; i < call.m; ++i) {
      for (int64_t j = 0; j < call.n; ++j) {
        const auto term = [&](int64_t p) {
          return std::pair<Real, Real>(
              static_cast<Real>(get(a.at(offset(a), i, p), a.array.dtype)),
              static_cast<Real>(get(b.at(offset(b), p, j), b.array.dtype)));
        };
        const bool skips = call.skips_zeros != 0;
        const std::optional<Real> found =
            call.k == 0 ? std::optional<Real>() : tree<Real>(0, call.k, leaf, term);
        Real sum = found && (!skips || *found != 0) ? *found : Real(0);
        if (call.bias.data != nullptr)
          sum += static_cast<Real>(get(bias.at(offset(bias), 0, j), bias.array.dtype));
        // The rounding is from Real: a second one from double could differ.
        const auto write = [&](auto rounded) {
          std::memcpy(c->at(offset(*c), i, j), &rounded, sizeof rounded);
        };
        using bridge::math::round_to;
        if (c->array.dtype == BRIDGE_FLOAT16) write(round_to<float16>(sum));
        if (c->array.dtype == BRIDGE_BFLOAT16) write(round_to<bfloat16>(sum));
        if (c->array.dtype == BRIDGE_FLOAT32) write(round_to<float>(sum));
        if (c->array.dtype == BRIDGE_FLOAT64) write(round_to<double>(sum));
      }
    }
  }
}

// A call with the bits that it must write into c.
struct Case {
  bridge_product call{};
  Array a, b, bias, c, expected;

  std::string words() const {
    char text[200];
    std::snprintf(text, sizeof text,
                  "%lld x %lld x %lld, dims %d, skips zeros %d, dtypes %d %d %d %d",
                  static_cast<long long>(call.m), static_cast<long long>(call.n),
                  static_cast<long long>(call.k), call.dims, call.skips_zeros, a.array.dtype,
                  b.array.dtype, call.bias.data != nullptr ? bias.array.dtype : -1, c.array.dtype);
    return text;
  }
};

// Draws all but the sums. With tensor cores a and b have the same 16-bit dtype, and no array is
// float64.
inline Case random_operands(int64_t m, int64_t n, int64_t k, bool has_tensor_cores) {
  Case all;
  auto& [call, a, b, bias, c, expected] = all;
  rare_among = pick(2) == 0 ? 400 : 1 << 20;
  call.m = m, call.n = n, call.k = k;
  call.dims = static_cast<int32_t>(pick(3));
  for (int32_t d = 0; d < call.dims; ++d) call.size[d] = pick(8) == 0 ? 0 : 1 + pick(3);
  if (m * n * k > 100000) call.dims = 0;
  const auto dtype = [&] { return static_cast<int32_t>(pick(has_tensor_cores ? 3 : 4)); };
  const int32_t same = has_tensor_cores ? static_cast<int32_t>(pick(2)) : dtype();
  const bool is_mixed = pick(3) == 0, are_mixed = is_mixed && !has_tensor_cores;
  a.lay_out(call, are_mixed ? dtype() : same, m, k, pick(4), pick(4) != 0);
  b.lay_out(call, are_mixed ? dtype() : same, k, n, pick(4), pick(4) != 0);
  bias.lay_out(call, is_mixed ? dtype() : same, 1, n, pick(3), pick(2) != 0);
  bias.array.row_stride = 0;
  c.lay_out(call, is_mixed ? dtype() : same, m, n, pick(3), true);
  a.fill(), b.fill(), bias.fill();
  call.tensor_cores = has_tensor_cores ? 1 : 0;
  if (!has_tensor_cores && pick(2) == 0) {
    call.skips_zeros = 1;
    a.hide(m, k, pick(3));
  }
  call.a = a.array, call.b = b.array, call.c = c.array;
  if (pick(2) == 0) call.bias = bias.array;
  expected = c;
  expected.array.data = expected.memory.data();
  return all;
}

inline Case random_case(int64_t m, int64_t n, int64_t k) {
  Case all = random_operands(m, n, k, false);
  auto& [call, a, b, bias, c, expected] = all;
  bool is_double = call.bias.data != nullptr && bias.array.dtype == BRIDGE_FLOAT64;
  for (const Array* each : {&a, &b, &c})
    is_double = is_double || each->array.dtype == BRIDGE_FLOAT64;
  const Chain chain{call.skips_zeros != 0};
  if (is_double)
    expected_of<double>(call, a, b, bias, chain, &expected);
  else
    expected_of<float>(call, a, b, bias, chain, &expected);
  return all;
}

}  // namespace product_test

#endif  // BRIDGE_TESTS_CPP_PRODUCT_REFERENCE_H_
