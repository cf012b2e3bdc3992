// Random gradients of embeddings, and a plain evaluation in the order that the numerics define.
#ifndef BRIDGE_TESTS_CPP_EMBEDDING_REFERENCE_H_
#define BRIDGE_TESTS_CPP_EMBEDDING_REFERENCE_H_

#include <bridge/bridge.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "drivers/dtypes.h"
#include "math/convert.h"

namespace bridge::embedding_reference {

inline std::mt19937_64 random_words;

inline int64_t pick(int64_t end) {
  return static_cast<int64_t>(random_words() % static_cast<uint64_t>(end));
}

inline double number() {
  static const double rare[] = {0.0, -0.0, INFINITY, -INFINITY, 1e30, -1e-30, 1e-42, 65000.0};
  const int64_t kind = pick(2000);
  if (kind < 8) return rare[kind];
  return std::ldexp(static_cast<double>(pick(1 << 26) - (1 << 25)),
                    -25 + static_cast<int>(pick(6)));
}

// Calls use(T) with a number of the element type.
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

inline double get(const char* from, int32_t dtype) {
  return with_type(dtype, [&](auto kind) {
    std::memcpy(&kind, from, sizeof kind);
    return math::to_double(kind);
  });
}

// The ids of a call in the order of their places, [batches, count]: as numbers, and in the call's
// own dtype, for the CPU. The call has them sorted, for CUDA.
struct Ids {
  std::vector<int64_t> of;
  const char* data;
};

inline bridge_embedding_gradient on_cpu(bridge_embedding_gradient call, const Ids& ids) {
  call.ids = ids.data;
  call.order = nullptr;
  return call;
}

// Fills sizes, dtypes and arrays of a call. allocate(bytes) returns memory of exactly that size.
// Half of the places have one id, and some ids are no rows.
template <class Allocate>
Ids make_call(int64_t count, int64_t rows, int64_t cols, const Allocate& allocate,
              bridge_embedding_gradient* call) {
  *call = {};
  call->batches = pick(8) == 0 ? 0 : 1 + pick(2);
  call->count = count, call->rows = rows, call->cols = cols;
  call->dtype = static_cast<int32_t>(pick(4));
  call->index_dtype = pick(2) == 0 ? BRIDGE_INT32 : BRIDGE_INT64;
  const int64_t places = call->batches * count, bytes = element_bytes(call->dtype);
  const int64_t index_bytes = element_bytes(call->index_dtype);
  Ids ids;
  const int64_t often = pick(rows + 2) - 1;
  for (int64_t i = 0; i < places; ++i) ids.of.push_back(pick(2) == 0 ? often : pick(rows + 4) - 2);
  char* const own_ids = allocate(places * index_bytes);
  ids.data = own_ids;
  char* const sorted = allocate(places * index_bytes);
  char* const order = allocate(places * index_bytes);
  const auto put_index = [&](char* to, int64_t value) {
    const auto narrow = static_cast<int32_t>(value);
    std::memcpy(to, call->index_dtype == BRIDGE_INT32 ? static_cast<const void*>(&narrow) : &value,
                static_cast<size_t>(index_bytes));
  };
  for (int64_t batch = 0; batch < call->batches; ++batch) {
    const int64_t* const own = ids.of.data() + batch * count;
    for (int64_t i = 0; i < count; ++i)
      put_index(own_ids + (batch * count + i) * index_bytes, own[i]);
    std::vector<int64_t> rising(static_cast<size_t>(count));
    std::iota(rising.begin(), rising.end(), 0);
    std::stable_sort(rising.begin(), rising.end(),
                     [&](int64_t a, int64_t b) { return own[a] < own[b]; });
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = rising[static_cast<size_t>(i)];
      put_index(sorted + (batch * count + i) * index_bytes, own[place]);
      put_index(order + (batch * count + i) * index_bytes, place);
    }
  }
  char* const terms = allocate(places * cols * bytes);
  for (int64_t i = 0; i < places * cols; ++i) put(terms + i * bytes, call->dtype, number());
  char* const result = allocate(call->batches * rows * cols * bytes);
  std::memset(result, 0x55, static_cast<size_t>(call->batches * rows * cols * bytes));
  call->ids = sorted, call->order = order, call->terms = terms, call->result = result;
  return ids;
}

template <class Real>
Real tree(const std::vector<Real>& terms, size_t first, size_t end) {
  if (end - first <= 16)
    return std::accumulate(terms.begin() + static_cast<int64_t>(first),
                           terms.begin() + static_cast<int64_t>(end), Real(-0.0));
  size_t half = 16;
  while (2 * half < end - first) half *= 2;
  return tree(terms, first, first + half) + tree(terms, first + half, end);
}

template <class Real>
std::vector<char> expected_of(const bridge_embedding_gradient& call, const Ids& ids) {
  const int64_t bytes = element_bytes(call.dtype);
  std::vector<char> result(static_cast<size_t>(call.batches * call.rows * call.cols * bytes));
  for (int64_t batch = 0; batch < call.batches; ++batch) {
    for (int64_t row = 0; row < call.rows; ++row) {
      for (int64_t col = 0; col < call.cols; ++col) {
        std::vector<Real> terms;
        for (int64_t i = batch * call.count; i < (batch + 1) * call.count; ++i)
          if (ids.of[static_cast<size_t>(i)] == row)
            terms.push_back(static_cast<Real>(get(
                static_cast<const char*>(call.terms) + (i * call.cols + col) * bytes, call.dtype)));
        const Real sum = terms.empty() ? Real(0) : tree(terms, 0, terms.size());
        char* const to = result.data() + ((batch * call.rows + row) * call.cols + col) * bytes;
        // The rounding is from Real: a second one from double could differ.
        with_type(call.dtype, [&](auto kind) {
          const auto rounded = math::round_to<decltype(kind)>(sum);
          std::memcpy(to, &rounded, sizeof rounded);
        });
      }
    }
  }
  return result;
}

// Returns the bytes of the result; two NaN may differ.
inline std::vector<char> expected(const bridge_embedding_gradient& call, const Ids& ids) {
  return call.dtype == BRIDGE_FLOAT64 ? expected_of<double>(call, ids)
                                      : expected_of<float>(call, ids);
}

inline bool is_equal(const bridge_embedding_gradient& call, const std::vector<char>& wanted) {
  const auto bytes = static_cast<size_t>(element_bytes(call.dtype));
  const char* const found = static_cast<const char*>(call.result);
  for (size_t at = 0; at < wanted.size(); at += bytes)
    if (std::memcmp(found + at, wanted.data() + at, bytes) != 0 &&
        !(std::isnan(get(found + at, call.dtype)) &&
          std::isnan(get(wanted.data() + at, call.dtype))))
      return false;
  return true;
}

inline std::string describe(const bridge_embedding_gradient& call) {
  std::string text;
  for (const int64_t each : {call.batches, call.count, call.rows, call.cols, int64_t{call.dtype},
                             int64_t{call.index_dtype}})
    text += std::to_string(each) + " ";
  return "batches, count, rows, cols, dtype, index dtype: " + text;
}

}  // namespace bridge::embedding_reference

#endif  // BRIDGE_TESTS_CPP_EMBEDDING_REFERENCE_H_
