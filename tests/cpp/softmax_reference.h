// The definitions of softmax and softmax_derivative, one element and one row at a time: bit for
// bit, and by the textbook formula in long double.
#ifndef BRIDGE_TESTS_SOFTMAX_REFERENCE_H_
#define BRIDGE_TESTS_SOFTMAX_REFERENCE_H_

#include <bridge/bridge.h>
#include <math.h>

#include <functional>
#include <type_traits>
#include <vector>

#include "array_reference.h"
#include "math/softmax.h"

namespace bridge::reference {

// The tree in the form of docs/numerics.md: a chunk is 32 rows of 32 lanes.
template <class Real>
Real tree_sum(const std::vector<Real>& terms) {
  std::vector<Real> nodes;
  for (size_t begin = 0; begin < terms.size(); begin += 1024) {
    auto e = [&](size_t row, size_t lane) {
      const size_t i = begin + row * 32 + lane;
      return i < terms.size() ? terms[i] : Real(-0.0);
    };
    Real lane[32];
    for (size_t l = 0; l < 32; ++l) {
      Real a[8];
      for (size_t k = 0; k < 8; ++k) a[k] = (e(k, l) + e(k + 8, l)) + (e(k + 16, l) + e(k + 24, l));
      lane[l] = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
    }
    for (size_t half = 16; half > 0; half /= 2)
      for (size_t l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
    nodes.push_back(lane[0]);
  }
  while (nodes.size() > 1) {
    std::vector<Real> parents;
    for (size_t i = 0; i < nodes.size(); i += 2)
      parents.push_back(i + 1 < nodes.size() ? nodes[i] + nodes[i + 1] : nodes[i]);
    nodes = parents;
  }
  return nodes.empty() ? Real(-0.0) : nodes[0];
}

// Calls visit(index of the row in each dimension, visible columns) for every row.
inline void for_each_row(const bridge_row_space& space,
                         const std::function<void(const int64_t*, int64_t)>& visit) {
  int64_t index[BRIDGE_MAX_DIMS + 1] = {};
  for (int d = 0; d < space.dims; ++d)
    if (space.size[d] == 0) return;
  for (;;) {
    int64_t visible = space.cols;
    if (space.causal) {
      const int last = space.dims - 1;
      visible = std::max<int64_t>(
          0, std::min(space.cols, index[last] + 1 + space.cols - space.size[last]));
    }
    visit(index, visible);
    int d = space.dims - 1;
    for (; d >= 0 && ++index[d] == space.size[d]; --d) index[d] = 0;
    if (d < 0) return;
  }
}

inline int64_t row_offset(const bridge_row_space& space, const int64_t* index,
                          const int64_t* stride) {
  int64_t offset = 0;
  for (int d = 0; d < space.dims; ++d) offset += index[d] * stride[d];
  return offset;
}

template <class Real>
Real load_row_element(const bridge_row_space& space, const bridge_rows& rows, int32_t dtype,
                      const int64_t* index, int64_t col) {
  return load<Real>(rows.data, dtype, row_offset(space, index, rows.stride) + col);
}

inline bool is_hidden(const bridge_softmax& call, const int64_t* index, int64_t visible,
                      int64_t col) {
  if (col >= visible) return true;
  if (call.mask.data == nullptr) return false;
  return call.mask
             .data[row_offset(call.space, index, call.mask.stride) + col * call.mask.col_stride] !=
         0;
}

template <class Precision>
void softmax_in(const bridge_softmax& call) {
  using Real = typename Precision::real;
  const math::SoftmaxScale<Real> scale = math::softmax_scale<Precision>(call.scale);
  for_each_row(call.space, [&](const int64_t* index, int64_t visible) {
    const size_t cols = static_cast<size_t>(call.space.cols);
    std::vector<Real> key(cols), power(cols);
    Real largest = -INFINITY;
    for (size_t j = 0; j < cols; ++j) {
      key[j] = -INFINITY;
      if (!is_hidden(call, index, visible, static_cast<int64_t>(j)))
        key[j] = math::softmax_key(
            load_row_element<Real>(call.space, call.x, call.dtype, index, static_cast<int64_t>(j)),
            scale);
      largest = math::softmax_larger(key[j], largest);
    }
    const auto shift = math::softmax_shift<Precision>(largest, scale);
    std::vector<math::SoftmaxTerm<Precision>> terms(cols);
    for (size_t j = 0; j < cols; ++j) {
      power[j] = math::softmax_power<Precision>(key[j], shift, scale);
      terms[j] = math::softmax_term<Precision>(power[j]);
    }
    const math::SoftmaxInverse<Real> inverse = math::softmax_inverse(tree_sum(terms), shift);
    for (size_t j = 0; j < cols; ++j) {
      const bool hidden = is_hidden(call, index, visible, static_cast<int64_t>(j));
      store(call.output.data, call.dtype,
            row_offset(call.space, index, call.output.stride) + static_cast<int64_t>(j),
            hidden ? Real(0) : math::softmax_value<Precision>(power[j], inverse));
    }
  });
}

inline void run(const bridge_softmax& call) {
  if (call.dtype == BRIDGE_FLOAT64) return softmax_in<math::Double>(call);
  if (call.dtype == BRIDGE_FLOAT32) return softmax_in<math::Single>(call);
  if (call.dtype == BRIDGE_FLOAT16) return softmax_in<math::SingleForFloat16>(call);
  softmax_in<math::SingleForBfloat16>(call);
}

template <class Real>
void derivative_in(const bridge_softmax_derivative& call) {
  const bool jacobian = call.w.data == nullptr;
  const Real scale = math::softmax_derivative_scale<Real>(call.scale);
  for_each_row(call.space, [&](const int64_t* index, int64_t visible) {
    const size_t cols = static_cast<size_t>(visible);
    auto row_of = [&](const bridge_rows& rows) {
      std::vector<Real> row(cols);
      for (size_t j = 0; j < cols; ++j)
        row[j] =
            load_row_element<Real>(call.space, rows, call.dtype, index, static_cast<int64_t>(j));
      return row;
    };
    const std::vector<Real> u = row_of(call.u), v = row_of(call.v),
                            w = row_of(jacobian ? call.u : call.w);
    auto dot = [&](const std::vector<Real>& a, const std::vector<Real>& b) {
      std::vector<Real> terms(cols);
      for (size_t j = 0; j < cols; ++j) terms[j] = jacobian && u[j] == 0 ? Real(-0.0) : a[j] * b[j];
      return tree_sum(terms);
    };
    const Real vw = dot(v, w), uw = dot(u, w), uv = dot(u, v);
    for (size_t j = 0; j < static_cast<size_t>(call.space.cols); ++j) {
      Real value = 0;
      if (j < cols && jacobian) {
        if (u[j] != 0) value = scale * (u[j] * (v[j] - uv));
      } else if (j < cols) {
        bool begun = false;
        auto add = [&](bool wanted, Real factor, Real sum) {
          if (!wanted) return;
          value = begun ? math::fma(-factor, sum, value) : -(factor * sum);
          begun = true;
        };
        if (call.terms & BRIDGE_SOFTMAX_PRODUCT) value = u[j] * v[j], begun = true;
        add(call.terms & BRIDGE_SOFTMAX_U, u[j], vw);
        add(call.terms & BRIDGE_SOFTMAX_V, v[j], uw);
        add(call.terms & BRIDGE_SOFTMAX_W, w[j], uv);
        value = scale * value;
      }
      store(call.output.data, call.dtype,
            row_offset(call.space, index, call.output.stride) + static_cast<int64_t>(j), value);
    }
  });
}

inline void run(const bridge_softmax_derivative& call) {
  if (call.dtype == BRIDGE_FLOAT64) return derivative_in<double>(call);
  derivative_in<float>(call);
}

// Compares with the textbook formula. Each result must be within `tolerance(value, |scale x -
// max|)` of the formula, and zero or NaN where the contract says so. Returns a description of the
// first wrong result, or "".
inline std::string compare_with_textbook(
    const bridge_softmax& call, const bridge_rows& result,
    const std::function<long double(long double, long double)>& tolerance) {
  std::string wrong;
  for_each_row(call.space, [&](const int64_t* index, int64_t visible) {
    const int64_t cols = call.space.cols;
    std::vector<long double> z(static_cast<size_t>(cols), -INFINITY);
    bool nan_row = false;
    long double largest = -INFINITY, total = 0;
    for (int64_t j = 0; j < cols; ++j) {
      if (is_hidden(call, index, visible, j)) continue;
      const long double scaled = static_cast<long double>(call.scale) *
                                 load_row_element<double>(call.space, call.x, call.dtype, index, j);
      z[static_cast<size_t>(j)] = scaled;
      nan_row = nan_row || isnan(scaled) || scaled == static_cast<long double>(INFINITY);
      if (scaled > largest) largest = scaled;
    }
    for (int64_t j = 0; j < cols; ++j)
      if (largest > -INFINITY) total += expl(z[static_cast<size_t>(j)] - largest);
    for (int64_t j = 0; j < cols; ++j) {
      const bool hidden = is_hidden(call, index, visible, j);
      const double got = load_row_element<double>(call.space, result, call.dtype, index, j);
      const long double at = z[static_cast<size_t>(j)];
      const long double expected =
          hidden || !(largest > -INFINITY) ? 0 : expl(at - largest) / total;
      bool right = hidden ? got == 0 && !signbit(got) : nan_row ? isnan(got) : false;
      if (!hidden && !nan_row)
        right =
            fabsl(got - expected) <= (expected == 0 ? 0 : tolerance(expected, fabsl(at - largest)));
      if (!right && wrong.empty())
        wrong = "column " + std::to_string(j) + " is " + std::to_string(got) + ", expected " +
                std::to_string(static_cast<double>(expected)) + (nan_row ? " (a NaN row)" : "");
    }
  });
  return wrong;
}

// Returns the distance of `result` from the formula of the derivative, as a multiple of the allowed
// error: `tolerance` times the sum of the magnitudes of its terms, plus `rounding` times the value,
// plus `least`. Operands must not contain infinity or NaN.
inline long double derivative_distance(const bridge_softmax_derivative& call,
                                       const bridge_rows& result, long double tolerance,
                                       long double rounding, long double least) {
  long double worst = 0;
  for_each_row(call.space, [&](const int64_t* index, int64_t visible) {
    long double dot[3] = {}, size[3] = {};  // <v, w>, <u, w>, <u, v>
    auto at = [&](const bridge_rows& rows, int64_t j) -> long double {
      return load_row_element<double>(call.space, rows, call.dtype, index, j);
    };
    const bridge_rows& third = call.w.data == nullptr ? call.u : call.w;
    for (int64_t j = 0; j < visible; ++j) {
      const long double u = at(call.u, j), v = at(call.v, j), w = at(third, j);
      const long double product[3] = {v * w, u * w, u * v};
      for (int i = 0; i < 3; ++i) dot[i] += product[i], size[i] += fabsl(product[i]);
    }
    for (int64_t j = 0; j < call.space.cols; ++j) {
      const long double got = at(result, j);
      long double expected = 0, magnitude = 0;
      if (j < visible) {
        const long double factor[3] = {at(call.u, j), at(call.v, j), at(third, j)};
        if (call.terms & 1) expected = factor[0] * factor[1], magnitude = fabsl(expected);
        for (int i = 0; i < 3; ++i) {
          if (!(call.terms & (2 << i))) continue;
          expected -= factor[i] * dot[i];
          magnitude += fabsl(factor[i]) * size[i];
        }
        const long double scale = call.scale;
        expected *= scale, magnitude *= fabsl(scale);
      }
      if (call.dtype == BRIDGE_FLOAT16 && fabsl(expected) > 65504 && isinf(got)) continue;
      const long double allowed = magnitude * tolerance + fabsl(expected) * rounding + least;
      worst = std::max(worst, fabsl(got - expected) / allowed);
    }
  });
  return worst;
}

}  // namespace bridge::reference

#endif  // BRIDGE_TESTS_SOFTMAX_REFERENCE_H_
