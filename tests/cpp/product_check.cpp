// Checks matrix products against a plain evaluation in the order that the numerics define: random
// sizes, strides, batches and dtypes, on every instruction set and several threads.
#include <bridge/bridge.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "drivers/dtypes.h"
#include "math/convert.h"

namespace {

using bridge::element_bytes;
using bridge::math::bfloat16;
using bridge::math::float16;

std::mt19937_64 random_words;
int failures = 0;

int64_t pick(int64_t end) {
  return static_cast<int64_t>(random_words() % static_cast<uint64_t>(end));
}

double number() {
  static const double rare[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e30, -1e-30, 1e-42};
  const int64_t kind = pick(400);
  if (kind < 8) return rare[kind];
  return std::ldexp(static_cast<double>(pick(1 << 26) - (1 << 25)),
                    -25 + static_cast<int>(pick(6)));
}

void put(char* to, int32_t dtype, double value) {
  using bridge::math::round_to;
  const auto write = [&](auto rounded) { std::memcpy(to, &rounded, sizeof rounded); };
  if (dtype == BRIDGE_FLOAT16) return write(round_to<float16>(value));
  if (dtype == BRIDGE_BFLOAT16) return write(round_to<bfloat16>(value));
  if (dtype == BRIDGE_FLOAT32) return write(round_to<float>(value));
  write(round_to<double>(value));
}

double get(const char* from, int32_t dtype) {
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
  char* at(int64_t offset, int64_t row, int64_t col) const {
    return static_cast<char*>(array.data) +
           (offset + row * array.row_stride + col * array.col_stride) * element_bytes(array.dtype);
  }
};

// A plain statement of the order: chains of 256 terms, then halves at powers of two.
template <class Real, class Term>
Real chain(int64_t first, int64_t end, const Term& term) {
  Real sum = term(first).first * term(first).second;
  for (int64_t p = first + 1; p < end; ++p) sum = std::fma(term(p).first, term(p).second, sum);
  return sum;
}
template <class Real, class Term>
Real tree(int64_t first, int64_t end, const Term& term) {
  if (end - first <= 256) return chain<Real>(first, end, term);
  int64_t half = 256;
  while (2 * half < end - first) half *= 2;
  return tree<Real>(first, first + half, term) + tree<Real>(first + half, end, term);
}

template <class Real>
void expected_of(const bridge_product& call, const Array& a, const Array& b, const Array& bias,
                 Array* c) {
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
        Real sum = call.k == 0 ? Real(0) : tree<Real>(0, call.k, term);
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

void check_one(int64_t m, int64_t n, int64_t k, const bridge_executor* executor, const char* isa) {
  bridge_product call{};
  call.m = m, call.n = n, call.k = k;
  call.dims = static_cast<int32_t>(pick(3));
  for (int32_t d = 0; d < call.dims; ++d) call.size[d] = pick(8) == 0 ? 0 : 1 + pick(3);
  if (m * n * k > 100000) call.dims = 0;
  const auto dtype = [] { return static_cast<int32_t>(pick(4)); };
  const int32_t same = dtype();
  const bool is_mixed = pick(3) == 0;
  Array a, b, bias, c;
  a.lay_out(call, is_mixed ? dtype() : same, m, k, pick(4), pick(4) != 0);
  b.lay_out(call, is_mixed ? dtype() : same, k, n, pick(4), pick(4) != 0);
  bias.lay_out(call, is_mixed ? dtype() : same, 1, n, pick(3), pick(2) != 0);
  bias.array.row_stride = 0;
  c.lay_out(call, is_mixed ? dtype() : same, m, n, pick(3), true);
  a.fill(), b.fill(), bias.fill();
  call.a = a.array, call.b = b.array, call.c = c.array;
  const bool has_bias = pick(2) == 0;
  if (has_bias) call.bias = bias.array;
  bool is_double = false;
  for (const Array* each : {&a, &b, &c})
    is_double = is_double || each->array.dtype == BRIDGE_FLOAT64;
  if (has_bias) is_double = is_double || bias.array.dtype == BRIDGE_FLOAT64;
  Array expected = c;
  expected.array.data = expected.memory.data();
  if (is_double)
    expected_of<double>(call, a, b, bias, &expected);
  else
    expected_of<float>(call, a, b, bias, &expected);
  const bridge_status status = bridge_product_cpu(&call, executor);
  if (status == BRIDGE_OK && c.memory == expected.memory) return;
  ++failures;
  std::printf(
      "product_check: %s: %lld x %lld x %lld, dims %d, dtypes %d %d %d %d, threads %d: %s\n", isa,
      static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k), call.dims,
      a.array.dtype, b.array.dtype, has_bias ? bias.array.dtype : -1, c.array.dtype,
      executor->threads, status == BRIDGE_OK ? "other bits" : bridge_last_error());
}

void check_refusals() {
  bridge_product call{};
  call.m = call.n = call.k = 1;
  const auto refused = [](const bridge_product* given, const char* words) {
    const bridge_status status = bridge_product_cpu(given, nullptr);
    if (status == BRIDGE_INVALID_ARGUMENT && std::strstr(bridge_last_error(), words) != nullptr)
      return;
    ++failures;
    std::printf("product_check: not refused: %s\n", words);
  };
  refused(nullptr, "null");
  call.dims = BRIDGE_MAX_DIMS + 1;
  refused(&call, "dimensions");
  call.dims = 0;
  call.k = -1;
  refused(&call, "negative");
  call.k = 1;
  call.b.dtype = BRIDGE_INT32;
  refused(&call, "floating");
  call.b.dtype = BRIDGE_FLOAT32;
  alignas(8) char memory[16] = {};
  call.b.data = memory + 1;
  refused(&call, "aligned");
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t rounds = count > 1 ? std::atoll(arguments[1]) : 12;
  random_words.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  check_refusals();
  static const int64_t sizes[] = {0, 1, 2, 5, 6, 7, 13, 14, 15, 16, 28, 31, 32, 33, 48, 65, 130};
  static const int64_t depths[] = {0,   1,    2,    7,    64,   255,  256,  257,  511, 512,
                                   513, 1023, 1024, 1025, 1500, 2048, 2305, 3073, 5000};
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    for (int64_t i = 0; i < rounds; ++i) {
      const bridge_executor executor = bridge_pool(1 + static_cast<int32_t>(pick(3)));
      check_one(sizes[pick(17)], sizes[pick(17)], depths[pick(19)], &executor, *isa);
    }
    const bridge_executor executor = bridge_pool(3);
    for (int64_t i = 0; i < 1; ++i)
      check_one(600 + pick(9), 560 + pick(40), 1030 + pick(9), &executor, *isa);
  }
  std::printf(failures == 0 ? "product_check: passed\n" : "product_check: %d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
