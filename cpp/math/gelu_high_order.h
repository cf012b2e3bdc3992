// Derivatives of GELU of order 3 to 8, in double. These are rare, so loops and branches are fine.
#pragma once

#include "math/gelu_erf.h"
#include "math/gelu_logistic.h"

namespace bridge::math::detail {

constexpr int highest_order = 8;

// gelu'' = phi(h) (2 - h^2), and (phi P)' = phi (P' - h P).
BRIDGE_HD double gelu_erf_high_order(double h, int order) {
  const double a = min_keep_nan(ErfTable<double>::bound, absolute(h));
  const double x = is_negative(h) ? -a : a;
  double coefficients[highest_order + 1] = {2.0, 0.0, -1.0};
  for (int n = 2; n < order; ++n) {
    double next[highest_order + 1] = {};
    for (int i = 0; i <= n; ++i) {
      if (i > 0) next[i - 1] += i * coefficients[i];
      next[i + 1 <= highest_order ? i + 1 : highest_order] -= coefficients[i];
    }
    for (int i = 0; i <= highest_order; ++i) coefficients[i] = next[i];
  }
  double factor = 0.0;
  for (int i = highest_order; i >= 0; --i) factor = fma(factor, x, coefficients[i]);
  factor *= ErfTable<double>::density;
  const double square = a * a;
  const Gaussian<double> bell = gaussian(square, fma(a, a, -square));
  constexpr double unlift = power_of_two<double>(-Exp2Table<double>::lift);
  return (fma(factor, bell.power, factor) * bell.lifted) * unlift;
}

// The Taylor series of h sigma(w(h)) at -|h|, where sigma does not cancel, from sigma' =
// sigma (1 - sigma). From order 2 on, gelu^(n)(h) = (-1)^n gelu^(n)(-h).
template <GeluForm F>
BRIDGE_HD double gelu_logistic_high_order(double h, int order) {
  using Table = LogisticTable<double, F>;
  const double a = min_keep_nan(Table::bound, absolute(h));
  const LogisticParts<double> parts = logistic_parts<double, F, 1>(a);
  const double rough = rough_reciprocal(parts.denominator.high);
  constexpr double unlift = power_of_two<double>(-Exp2Table<double>::lift);
  const double s = parts.lifted * unlift;

  double argument[3] = {Table::slope, 0.0, 0.0};  // the series of w'
  if constexpr (F == GeluForm::tanh) {
    argument[0] = fma(a * a, Table::slope_cubic, Table::slope);
    argument[1] = -2 * a * Table::slope_cubic;
    argument[2] = Table::slope_cubic;
  }
  // sigma = s y keeps y away from underflow; 1 - sigma has the series z.
  double y[highest_order + 1];
  double z[highest_order + 1];
  double product[highest_order + 1];
  y[0] = divide(1.0, parts.denominator, rough);
  z[0] = (1.0 + parts.power) * y[0];
  for (int n = 0; n < order; ++n) {
    product[n] = 0.0;
    for (int i = 0; i <= n; ++i) product[n] = fma(y[i], z[n - i], product[n]);
    double next = 0.0;
    for (int i = 0; i <= n && i < 3; ++i) next = fma(argument[i], product[n - i], next);
    y[n + 1] = next / (n + 1);
    z[n + 1] = -s * y[n + 1];
  }
  double factorial = 1.0;
  for (int n = 2; n <= order; ++n) factorial *= n;
  const bool flip = !is_negative(h) && order % 2 != 0;
  const double factor = fma(-a, y[order], y[order - 1]) * (flip ? -factorial : factorial);
  return (factor * parts.lifted) * unlift;
}

}  // namespace bridge::math::detail
