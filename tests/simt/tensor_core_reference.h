// Products on tensor cores by a plain evaluation of the model that tensor_core_emulator.h
// describes: in doubles, where the emulator has integers.
#ifndef BRIDGE_TESTS_SIMT_TENSOR_CORE_REFERENCE_H_
#define BRIDGE_TESTS_SIMT_TENSOR_CORE_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "../cpp/product_reference.h"

namespace tensor_core_test {

struct Model {
  int terms, fraction_bits, zero_exponent;
  // The largest error of a leaf, in units of 2^-24 times the sum of its terms without their signs:
  // in each group all terms and the accumulator are cut, and then the sum.
  double leaf_error() const {
    return 256.0 / terms * ((terms + 1) * std::ldexp(1.0, 24 - fraction_bits) + 2.0);
  }
};
constexpr Model kAmpere{8, 24, -132}, kHopper{16, 25, -133};

// The sum of a leaf, `leaf` of product_test::tree, for elements whose least exponent is given.
struct MmaChain {
  Model model;
  int least_exponent;

  static std::pair<double, int> split(double x, int least) {
    int exponent = 0;
    const double significand = std::frexp(x, &exponent);
    const int own = std::max(exponent - 1, least);
    return {std::ldexp(significand, exponent - own), own};
  }

  float group(const std::vector<std::pair<float, float>>& terms, float c) const {
    double whole = c;
    std::vector<std::pair<double, int>> parts = {split(c, -126)};
    for (const auto& [a, b] : terms) {
      whole += static_cast<double>(a) * static_cast<double>(b);
      const auto [left, left_exponent] = split(a, least_exponent);
      const auto [right, right_exponent] = split(b, least_exponent);
      parts.emplace_back(left * right, left_exponent + right_exponent);
    }
    if (!std::isfinite(whole)) return static_cast<float>(whole);
    int largest = model.zero_exponent;
    for (const auto& [significand, exponent] : parts)
      if (significand != 0) largest = std::max(largest, exponent);
    double sum = 0;
    for (const auto& [significand, exponent] : parts)
      sum += std::trunc(std::ldexp(significand, model.fraction_bits + exponent - largest));
    const double value = std::ldexp(sum, largest - model.fraction_bits);
    if (std::abs(value) >= std::ldexp(1.0, 128)) return static_cast<float>(value * INFINITY);
    const auto nearest = static_cast<float>(value);
    const bool is_beyond = std::abs(static_cast<double>(nearest)) > std::abs(value);
    return (is_beyond ? std::nextafter(nearest, 0.0f) : nearest) + 0.0f;
  }

  template <class Real, class Term>
  std::optional<Real> sum(int64_t first, int64_t end, const Term& term) const {
    float c = 0;
    for (int64_t p = first; p < end; p += 16) {
      std::vector<std::pair<float, float>> terms;
      for (int64_t q = p; q < p + 16; ++q)
        terms.push_back(q < end ? term(q) : std::pair<float, float>{0.0f, 0.0f});
      for (int64_t q = 0; q < 16; q += model.terms)
        c = group({terms.begin() + q, terms.begin() + q + model.terms}, c);
    }
    return c;
  }
};

}  // namespace tensor_core_test

#endif  // BRIDGE_TESTS_SIMT_TENSOR_CORE_REFERENCE_H_
