// Access to arrays one element at a time, and the column sum in the form of docs/numerics.md, for
// the definitions with which kernels are compared bit for bit.
#ifndef BRIDGE_TESTS_ARRAY_REFERENCE_H_
#define BRIDGE_TESTS_ARRAY_REFERENCE_H_

#include <bridge/bridge.h>
#include <string.h>

#include <vector>

#include "drivers/dtypes.h"
#include "math/convert.h"
#include "math/eight_bits.h"

namespace bridge::reference {

template <class Real>
void store(void* data, int32_t dtype, int64_t index, Real value) {
  char* const at = static_cast<char*>(data) + index * element_bytes(dtype);
  auto put = [&](auto rounded) { memcpy(at, &rounded, sizeof rounded); };
  if (dtype == BRIDGE_FLOAT16) put(math::round_to<math::float16>(value));
  if (dtype == BRIDGE_BFLOAT16) put(math::round_to<math::bfloat16>(value));
  if (dtype == BRIDGE_FLOAT32) put(math::round_to<float>(value));
  if (dtype == BRIDGE_FLOAT64) put(math::round_to<double>(value));
  if (dtype == BRIDGE_INT8) put(math::round_to<int8_t>(value));
  if (dtype == BRIDGE_FLOAT8_E4M3FN) put(math::round_to<math::float8_e4m3fn>(value));
  if (dtype == BRIDGE_FLOAT8_E5M2) put(math::round_to<math::float8_e5m2>(value));
  if (dtype == BRIDGE_FLOAT8_E8M0FNU) put(math::round_to<math::float8_e8m0fnu>(value));
}

template <class Real>
Real load(const void* data, int32_t dtype, int64_t index) {
  const char* const at = static_cast<const char*>(data) + index * element_bytes(dtype);
  auto get = [&](auto value) {
    memcpy(&value, at, sizeof value);
    return value;
  };
  if (dtype == BRIDGE_FLOAT16) return math::to_float(get(math::float16{}));
  if (dtype == BRIDGE_BFLOAT16) return math::to_float(get(math::bfloat16{}));
  if (dtype == BRIDGE_FLOAT32) return get(float{});
  if (dtype == BRIDGE_INT8) return get(int8_t{});
  if (dtype == BRIDGE_FLOAT8_E4M3FN) return math::to_float(get(math::float8_e4m3fn{}));
  if (dtype == BRIDGE_FLOAT8_E5M2) return math::to_float(get(math::float8_e5m2{}));
  if (dtype == BRIDGE_FLOAT8_E8M0FNU) return math::to_float(get(math::float8_e8m0fnu{}));
  return static_cast<Real>(get(double{}));
}

// The sum of the chunk of 128 values from `begin` on, by the tree of docs/numerics.md.
template <class Real>
Real chunk_sum(const std::vector<Real>& values, int64_t begin) {
  Real lane[8];
  for (int64_t l = 0; l < 8; ++l) {
    lane[l] = Real(-0.0);
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t row = begin + l * 16 + i;
      if (row < static_cast<int64_t>(values.size())) lane[l] = lane[l] + values[row];
    }
  }
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

template <class Real>
Real column_sum(const std::vector<Real>& values) {
  if (values.empty()) return Real(0);
  std::vector<Real> nodes;
  for (int64_t row = 0; row < static_cast<int64_t>(values.size()); row += 128)
    nodes.push_back(chunk_sum(values, row));
  while (nodes.size() > 1) {
    std::vector<Real> parents;
    for (size_t i = 0; i < nodes.size(); i += 2)
      parents.push_back(i + 1 < nodes.size() ? nodes[i] + nodes[i + 1] : nodes[i]);
    nodes = parents;
  }
  return nodes[0];
}

}  // namespace bridge::reference

#endif  // BRIDGE_TESTS_ARRAY_REFERENCE_H_
