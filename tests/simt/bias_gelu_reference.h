// bias_gelu by brute force: one element after another, the column sums as docs/numerics.md words
// them. Nothing here is shared with the kernels but the scalar functions of cpp/math.
#ifndef BRIDGE_TESTS_SIMT_BIAS_GELU_REFERENCE_H_
#define BRIDGE_TESTS_SIMT_BIAS_GELU_REFERENCE_H_

#include <bridge/bridge.h>

#include <vector>

#include "math/convert.h"
#include "math/gelu.h"

namespace bridge::reference {

template <class Real>
Real load(const bridge_array& array, int64_t index) {
  switch (array.dtype) {
    case BRIDGE_FLOAT16:
      return math::to_float(static_cast<const math::float16*>(array.data)[index]);
    case BRIDGE_BFLOAT16:
      return math::to_float(static_cast<const math::bfloat16*>(array.data)[index]);
    case BRIDGE_FLOAT32:
      return static_cast<const float*>(array.data)[index];
    default:
      return static_cast<Real>(static_cast<const double*>(array.data)[index]);
  }
}

template <class Real>
void store(const bridge_array& array, int64_t index, Real value) {
  switch (array.dtype) {
    case BRIDGE_FLOAT16:
      static_cast<math::float16*>(array.data)[index] = math::round_to<math::float16>(value);
      return;
    case BRIDGE_BFLOAT16:
      static_cast<math::bfloat16*>(array.data)[index] = math::round_to<math::bfloat16>(value);
      return;
    case BRIDGE_FLOAT32:
      static_cast<float*>(array.data)[index] = math::round_to<float>(value);
      return;
    default:
      static_cast<double*>(array.data)[index] = math::round_to<double>(value);
  }
}

template <class Real>
Real load_pair(const bridge_pair& pair, int64_t batch, int64_t row, int64_t column) {
  const int64_t in_row = batch * pair.row.batch_stride + column;
  if (pair.full.data == nullptr) return load<Real>(pair.row, in_row);
  const Real full =
      load<Real>(pair.full, batch * pair.full.batch_stride + row * pair.full.row_stride + column);
  return pair.row.data == nullptr ? full : full + load<Real>(pair.row, in_row);
}

template <class Precision, math::GeluForm kForm>
typename Precision::real gelu(int order, typename Precision::real h) {
  if (order == 0) return math::gelu<Precision, kForm, 0>(h);
  if (order == 1) return math::gelu<Precision, kForm, 1>(h);
  if (order == 2) return math::gelu<Precision, kForm, 2>(h);
  return math::gelu_high_order<Precision, kForm>(h, order);
}

template <class Precision>
typename Precision::real element(const bridge_bias_gelu& call, int64_t batch, int64_t row,
                                 int64_t column) {
  using Real = typename Precision::real;
  const Real h = load_pair<Real>(call.input, batch, row, column);
  Real value = call.form == BRIDGE_GELU_TANH ? gelu<Precision, math::GeluForm::tanh>(call.order, h)
               : call.form == BRIDGE_GELU_ERF
                   ? gelu<Precision, math::GeluForm::erf>(call.order, h)
                   : gelu<Precision, math::GeluForm::sigmoid>(call.order, h);
  for (int i = 0; i < call.factors; ++i) {
    value = value * load_pair<Real>(call.factor[i], batch, row, column);
  }
  return value;
}

// Pairs of neighbours, until one is left; a last one without a neighbour stays as it is.
template <class Real>
Real tree(std::vector<Real> nodes) {
  while (nodes.size() > 1) {
    std::vector<Real> parents;
    for (size_t i = 0; i < nodes.size(); i += 2) {
      parents.push_back(i + 1 < nodes.size() ? nodes[i] + nodes[i + 1] : nodes[i]);
    }
    nodes.swap(parents);
  }
  return nodes[0];
}

template <class Real>
Real column_sum(const std::vector<Real>& column) {
  if (column.empty()) return Real(0);
  std::vector<Real> chunks;
  for (size_t chunk = 0; chunk < column.size(); chunk += 128) {
    std::vector<Real> lanes(8, Real(-0.0));
    for (size_t row = chunk; row < column.size() && row < chunk + 128; ++row) {
      lanes[(row - chunk) / 16] = lanes[(row - chunk) / 16] + column[row];
    }
    chunks.push_back(tree(lanes));
  }
  return tree(chunks);
}

// Writes the outputs of `call` that are present.
template <class Precision>
void bias_gelu(const bridge_bias_gelu& call) {
  using Real = typename Precision::real;
  const bridge_array& full = call.output.full;
  const bridge_array& row = call.output.row;
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t c = 0; c < call.cols; ++c) {
      std::vector<Real> column;
      for (int64_t r = 0; r < call.rows; ++r) {
        column.push_back(element<Precision>(call, b, r, c));
        if (full.data != nullptr) {
          store(full, b * full.batch_stride + r * full.row_stride + c, column.back());
        }
      }
      if (row.data != nullptr) store(row, b * row.batch_stride + c, column_sum(column));
    }
  }
}

inline void bias_gelu(const bridge_bias_gelu& call) {
  bool any_double = false, all_16_bit = true;
  auto see = [&](const bridge_array& array) {
    if (array.data == nullptr) return;
    any_double |= array.dtype == BRIDGE_FLOAT64;
    all_16_bit &= array.dtype == BRIDGE_FLOAT16 || array.dtype == BRIDGE_BFLOAT16;
  };
  auto see_pair = [&](const bridge_pair& pair) {
    see(pair.full);
    see(pair.row);
  };
  see_pair(call.input);
  for (int i = 0; i < call.factors; ++i) see_pair(call.factor[i]);
  see_pair(call.output);
  if (any_double) return bias_gelu<math::Double>(call);
  if (all_16_bit) return bias_gelu<math::Half>(call);
  bias_gelu<math::Single>(call);
}

}  // namespace bridge::reference

#endif  // BRIDGE_TESTS_SIMT_BIAS_GELU_REFERENCE_H_
