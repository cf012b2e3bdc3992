// GELU as h sigma(w(h)): the tanh form, w = 2 sqrt(2/pi) (h + 0.044715 h^3), and the sigmoid form,
// w = 1.702 h. With a = |h|, w(a) = ln 2 (k + f), s = 2^-k and p = 2^f, the complementary
// probability is s / (s + p), which neither overflows nor cancels.
#pragma once

#include "math/exp2.h"

namespace bridge::math::detail {

template <class Real, GeluForm F>
struct LogisticTable;

// rate: w / ln 2 = a (rate + cubic a^2). rate_high has enough trailing zero bits for rate_high -
// (rate_high + cubic a^2) to be exact for every a below the bound. slope: w' = slope + slope_cubic
// a^2, split in the same way. Beyond the bound every result has underflowed.
template <>
struct LogisticTable<float, GeluForm::tanh> {
  static constexpr float bound = 11.5f;
  static constexpr float rate_high = 0x1.26aecp+1f, rate_low = 0x1.0de73ap-22f;
  static constexpr float cubic_high = 0x1.a5a7dp-4f, cubic_low = -0x1.151aaep-29f;
  static constexpr float slope = 0x1.98848p+0f, slope_low = -0x1.6615e4p-19f;
  static constexpr float slope_cubic = 0x1.b6676cp-3f;
};

template <>
struct LogisticTable<double, GeluForm::tanh> {
  static constexpr double bound = 22.5;
  static constexpr double rate_high = 0x1.26aec21bce760p+1, rate_low = -0x1.ad12d7a64bcebp-49;
  static constexpr double cubic_high = 0x1.a5a7cf7572a98p-4, cubic_low = -0x1.b91c940e4cfcfp-58;
  static constexpr double slope = 0x1.9884533d43680p+0, slope_low = -0x1.7b9781a61d7fap-47;
  static constexpr double slope_cubic = 0x1.b6676bf7450f0p-3;
};

template <>
struct LogisticTable<float, GeluForm::sigmoid> {
  static constexpr float bound = 70.0f;
  static constexpr float rate_high = 0x1.3a4cbep+1f, rate_low = -0x1.c08ecap-26f;
  static constexpr float slope = 0x1.b3b646p+0f, slope_low = -0x1.78d4fep-26f;
};

template <>
struct LogisticTable<double, GeluForm::sigmoid> {
  static constexpr double bound = 500.0;
  static constexpr double rate_high = 0x1.3a4cbdc7ee26bp+1, rate_low = 0x1.68797025e71e1p-54;
  static constexpr double slope = 0x1.b3b645a1cac08p+0, slope_low = 0x1.89374bc6a7efap-55;
};

// w(a) / ln 2 as a (high + low). A rounded rate alone would cost tens of ULP in the tail.
template <class Real, GeluForm F>
BRIDGE_HD Pair<Real> logistic_rate(Real a) {
  using Table = LogisticTable<Real, F>;
  if constexpr (F == GeluForm::tanh) {
    const Real square = a * a;
    const Real square_low = fma(a, a, -square);
    const Real high = fma(Table::cubic_high, square, Table::rate_high);
    const Real rest = fma(Table::cubic_high, square, Table::rate_high - high);
    const Real low = fma(Table::cubic_high, square_low, rest);
    return {high, low + fma(Table::cubic_low, square, Table::rate_low)};
  } else {
    return {Table::rate_high, Table::rate_low};
  }
}

// s + p as high + low, from 2^lift s and p - 1.
template <class Real>
BRIDGE_HD Pair<Real> logistic_denominator(Real lifted, Real power) {
  constexpr Real unlift = power_of_two<Real>(-Exp2Table<Real>::lift);
  // 1 + s + (p - 1): the errors of the sums are exact because |p - 1| < 1. The error of 1 + s
  // matters only at s = 2^-24, where it is a whole ULP.
  const Real whole = fma(lifted, unlift, Real(1));
  const Real whole_low = fma(lifted, unlift, 1 - whole);
  const Real sum = whole + power;
  return {sum, ((whole - sum) + power) + whole_low};
}

template <class Real, GeluForm F>
BRIDGE_HD Real logistic_size(Real h) {
  return min_keep_nan(LogisticTable<Real, F>::bound, absolute(h));
}

// 2^lift s and p - 1 for a.
template <class Real, GeluForm F, int Order>
BRIDGE_HD Started<Real> logistic_powers(Real a) {
  const Pair<Real> rate = logistic_rate<Real, F>(a);
  const Rounded<Real> rounded = round_product(rate.high, a);
  const Real f = fma(rate.low, a, fma(rate.high, a, -rounded.k));
  // The error of p counts twice in the derivatives.
  return {rounded.lifted, Order == 0 ? exp2_minus_one(f) : exp2_minus_one_carefully(f)};
}

// w'(a) as high + low.
template <class Real, GeluForm F>
BRIDGE_HD Pair<Real> logistic_slope(Real a) {
  using Table = LogisticTable<Real, F>;
  if constexpr (F == GeluForm::tanh) {
    const Real square = a * a;
    const Real high = fma(Table::slope_cubic, square, Table::slope);
    const Real rest = fma(Table::slope_cubic, square, Table::slope - high);
    return {high, fma(Table::slope_cubic, fma(a, a, -square), rest + Table::slope_low)};
  } else {
    return {Table::slope, Table::slope_low};
  }
}

template <class Real>
BRIDGE_HD Pair<Real> product(Real x, Pair<Real> y) {
  const Real high = x * y.high;
  return {high, fma(x, y.low, fma(x, y.high, -high))};
}

template <class Real, GeluForm F, int Order>
BRIDGE_HD Real gelu_logistic(Real h, Real a, Started<Real> powers) {
  using Table = LogisticTable<Real, F>;
  constexpr Real unlift = power_of_two<Real>(-Exp2Table<Real>::lift);
  const Real lifted = powers.first, power = powers.second;
  const Pair<Real> d = logistic_denominator(lifted, power);
  const Real rough = rough_reciprocal(d.high);
  if constexpr (Order == 0) {
    const Real tail = divide(a, d, rough) * lifted;
    return fma(tail, -unlift, positive_part(h));
  } else {
    const Pair<Real> slope = logistic_slope<Real, F>(a);
    const Pair<Real> rise = product(a, slope);
    const Pair<Real> d_square{d.high * d.high,
                              fma(2 * d.high, d.low, fma(d.high, d.high, -(d.high * d.high)))};
    const Real rough_square = rough * rough;
    if constexpr (Order == 1) {
      // gelu'(-a) = s (s + p (1 - a w')) / (s + p)^2, and gelu'(a) = 1 - gelu'(-a).
      const Real b = 1 - rise.high;
      const Real b_low = (1 - (rise.high + b)) - rise.low;
      const Real sum = fma(lifted, unlift, b);
      const Real high = fma(b, power, sum);
      const Real low = fma(b_low, power, b_low) + fma(b, power, sum - high);
      const Real tail = divide(Pair<Real>{high, low}, d_square, rough_square) * lifted;
      const bool negative = is_negative(h);
      return fma(tail, negative ? unlift : -unlift, negative ? Real(0) : Real(1));
    } else {
      // gelu'' = s p / (s + p)^2 (2 w' + a w'' - a w'^2 t), an even function, with t = (p - s) / (s
      // + p) = 1 - 2 s / (s + p).
      Real bend = 2 * (Table::slope + Table::slope_low);
      if constexpr (F == GeluForm::tanh) bend = fma(a * a, 4 * Table::slope_cubic, bend);
      const Real reciprocal = fma(rough, fma(-d.high, rough, Real(1)), rough);
      const Real t = fma(lifted * (-2 * unlift), reciprocal, Real(1));
      const Real steep = rise.high * slope.high;
      const Real steep_low =
          fma(rise.low, slope.high, fma(rise.high, slope.low, fma(rise.high, slope.high, -steep)));
      const Real factor = fma(-steep, t, bend);
      const Real high = fma(factor, power, factor);
      const Real low = fma(factor, power, factor - high) - steep_low * fma(t, power, t);
      const Pair<Real> numerator{high, low};
      return (divide(numerator, d_square, rough_square) * lifted) * unlift;
    }
  }
}

template <class Real, GeluForm F, int Order>
BRIDGE_HD Real gelu_logistic(Real h) {
  const Real a = logistic_size<Real, F>(h);
  return gelu_logistic<Real, F, Order>(h, a, logistic_powers<Real, F, Order>(a));
}

// gelu_logistic in two steps.
template <GeluForm F, int Order, class Real>
BRIDGE_HD Started<Real> start_gelu(Real h) {
  return logistic_powers<Real, F, Order>(logistic_size<Real, F>(h));
}

template <GeluForm F, int Order, class Real>
BRIDGE_HD Real finish_gelu(Real h, Started<Real> start) {
  return gelu_logistic<Real, F, Order>(h, logistic_size<Real, F>(h), start);
}

}  // namespace bridge::math::detail
