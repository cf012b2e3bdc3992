// The sum of a row by the tree of docs/numerics.md.
#ifndef BRIDGE_TESTS_ROW_SUM_REFERENCE_H_
#define BRIDGE_TESTS_ROW_SUM_REFERENCE_H_

#include <cstddef>
#include <vector>

namespace bridge::reference {

// The sum of a row: chunks of 1024 columns, folded in quarters and then in halves.
template <class Real>
Real row_sum(std::vector<Real> e) {
  if (e.empty()) return Real(-0.0);
  e.resize((e.size() + 1023) / 1024 * 1024, Real(-0.0));
  std::vector<Real> nodes;
  for (std::size_t chunk = 0; chunk < e.size(); chunk += 1024) {
    Real a[256];
    for (std::size_t i = 0; i < 256; ++i) {
      const Real* x = &e[chunk + i];
      a[i] = (x[0] + x[256]) + (x[512] + x[768]);
    }
    for (std::size_t half = 128; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) a[i] = a[i] + a[i + half];
    }
    nodes.push_back(a[0]);
  }
  while (nodes.size() > 1) {
    std::vector<Real> parents;
    for (std::size_t i = 0; i < nodes.size(); i += 2)
      parents.push_back(i + 1 < nodes.size() ? nodes[i] + nodes[i + 1] : nodes[i]);
    nodes = parents;
  }
  return nodes[0];
}

}  // namespace bridge::reference

#endif  // BRIDGE_TESTS_ROW_SUM_REFERENCE_H_
