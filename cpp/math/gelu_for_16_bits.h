// GELU for calls whose operands all have one 16-bit type, in the shortest float arithmetic that the
// type allows. Errors are at most 0.51 units of the type; near the zero of the logistic forms'
// derivative, where terms cancel, 2^-26 more.
#pragma once

#include "math/gelu_logistic.h"
#include "math/logistic_for_16_bits.h"
#include "math/power_for_16_bits.h"

namespace bridge::math::detail {

// ---- The tail as a power of two: log2 of the tail is a polynomial in a = |h|. ----

// `coefficients` give 2 + v 2^(1 - whole_bits) in powers of a - centre, where v is lift +
// log2(share) plus the constant of power_of_fixed. Order 0: gelu(-a) = -a share. Order 1: gelu'(-a)
// = (line_start - line_slope a) share; the zero of this line equals the zero of the derivative to
// 2^-41. v exceeds 3 wherever results are normal numbers.
//
// At the bound the result is exactly 0, and so is gelu' at -infinity: its product with the largest
// finite number is 0, its product with infinity is NaN. For bfloat16 the result underflows there.
// For float16 all bits of the power are 0, which is true of exactly this number.
template <class Precision, GeluForm F, int Order>
struct ShareTable {
  static constexpr bool exists = false;
};

// Relative error of the share: 2^-16.1.
template <>
struct ShareTable<SingleForBfloat16, GeluForm::erf, 0> {
  static constexpr bool exists = true;
  static constexpr int whole_bits = 8, lift = 30;
  static constexpr float bound = 14.375f, centre = 7.0f;
  static constexpr int degree = 10;
  static constexpr float coefficients[degree + 1] = {
      0x1.783f78p+1f,  -0x1.49839ep-4f,  -0x1.6a9752p-8f, -0x1.25d8dcp-17f,
      0x1.c235a2p-21f, -0x1.6dd222p-24f, 0x1.b94ffap-28f, -0x1.ca405ap-32f,
      0x1.b824b0p-34f, -0x1.db2936p-37f, 0x1.0f1eb2p-41f,
  };
};

// Relative error of the share: 2^-16.5.
template <>
struct ShareTable<SingleForBfloat16, GeluForm::erf, 1> {
  static constexpr bool exists = true;
  static constexpr int whole_bits = 8, lift = 30;
  static constexpr float bound = 14.625f, centre = 6.0f;
  static constexpr float line_start = 0x1.80f552p-1f, line_slope = 0x1.0006fcp+0f;
  static constexpr int degree = 12;
  static constexpr float coefficients[degree + 1] = {
      0x1.849d40p+1f,   -0x1.15ae94p-4f,  -0x1.6fd332p-8f,  -0x1.a1e3b0p-19f, 0x1.a6fd2ep-22f,
      -0x1.9e378ep-25f, 0x1.22293cp-27f,  -0x1.6b51b6p-30f, 0x1.3ad460p-35f,  0x1.1ec856p-37f,
      0x1.50083ap-39f,  -0x1.5012dap-41f, 0x1.23a0cap-45f,
  };
};

// Relative error of the share: 2^-18.7.
template <>
struct ShareTable<SingleForFloat16, GeluForm::erf, 0> {
  static constexpr bool exists = true;
  static constexpr int whole_bits = 6, lift = -67;
  static constexpr float bound = 0x1.1c17d6p+3f, centre = 3.0f;
  static constexpr int degree = 9;
  static constexpr float coefficients[degree + 1] = {
      0x1.d57a02p+1f,   -0x1.2f22fap-3f, -0x1.5745a0p-6f,  -0x1.effde8p-13f, 0x1.2b8b90p-15f,
      -0x1.52b1d4p-18f, 0x1.432c82p-21f, -0x1.bcae0ap-24f, 0x1.dd1b46p-27f,  0x1.38acc8p-28f,
  };
};

// Relative error of the share: 2^-18.6.
template <>
struct ShareTable<SingleForFloat16, GeluForm::erf, 1> {
  static constexpr bool exists = true;
  static constexpr int whole_bits = 6, lift = -66;
  static constexpr float bound = 0x1.21e1dep+3f, centre = 3.0f;
  static constexpr float line_start = 0x1.80f552p-1f, line_slope = 0x1.0006fcp+0f;
  static constexpr int degree = 9;
  static constexpr float coefficients[degree + 1] = {
      0x1.e16216p+1f,   -0x1.18db8ap-3f, -0x1.6a8798p-6f,  -0x1.6e4142p-14f, 0x1.27352ep-16f,
      -0x1.ca44c6p-19f, 0x1.430128p-21f, -0x1.93dc0ap-24f, 0x1.6af2bap-26f,  -0x1.0e833ap-28f,
  };
};

// Relative error of the share: 2^-18.8.
template <>
struct ShareTable<SingleForFloat16, GeluForm::tanh, 1> {
  static constexpr bool exists = true;
  static constexpr int whole_bits = 6, lift = -66;
  static constexpr float bound = 0x1.e2e8a0p+2f, centre = 2.0f;
  static constexpr float line_start = 0x1.81aaf8p-1f, line_slope = 0x1.004556p+0f;
  static constexpr int degree = 12;
  static constexpr float coefficients[degree + 1] = {
      0x1.f02caap+1f,   -0x1.7b649ap-4f,  -0x1.6f1106p-6f,  -0x1.7faeaep-10f, -0x1.04732cp-11f,
      -0x1.261568p-16f, 0x1.4e1ba0p-15f,  -0x1.63b058p-19f, -0x1.67e4d0p-19f, 0x1.cbdee0p-22f,
      0x1.9b4ddap-24f,  -0x1.e430a6p-26f, 0x1.d2b306p-30f,
  };
};

template <class Precision, GeluForm F, int Order>
BRIDGE_HD float gelu_by_logarithm(float h) {
  using Table = ShareTable<Precision, F, Order>;
  constexpr float unlift = power_of_two<float>(-Table::lift);
  const float a = min_keep_nan(Table::bound, absolute(h));
  const float share =
      power_of_fixed<Precision, Table::whole_bits>(polynomial<Table>(a - Table::centre));
  if constexpr (Order == 0) {
    return fma(a * share, -unlift, positive_part(h));
  } else {
    const float line = fma(a, -Table::line_slope * unlift, Table::line_start * unlift);
    return first_derivative_at(h, line * share);
  }
}

// ---- The logistic forms of gelu_logistic.h. ----

// The argument of power_of_fixed is first + a (rate + cubic a^2) = 2 + (v + 8) 2^(1 - whole_bits),
// and gain * power + constant = constant * (1 + 2^v). Beyond the bound every result has
// underflowed: to 0 for bfloat16, and for float16 to less than 2^-44, which rounds to -0.
template <class Precision, GeluForm F>
struct LogisticTableFor16Bits;

template <class Precision>
struct LogisticConstants;

template <>
struct LogisticConstants<SingleForBfloat16> {
  static constexpr int whole_bits = 8, lift = -18;
  static constexpr float first = 0x1.08p+1f, gain = 0x1.af3eb8p+67f, constant = 0x1.ff0536p-55f;
};

template <>
struct LogisticConstants<SingleForFloat16> {
  static constexpr int whole_bits = 6, lift = 0;
  static constexpr float first = 0x1.20p+1f, gain = 0x1.de6750p+121f, constant = 1.0f;
};

template <>
struct LogisticTableFor16Bits<SingleForBfloat16, GeluForm::tanh> {
  static constexpr float bound = 10.875f, rate = 0x1.26aec2p-6f, cubic = 0x1.a5a7d0p-11f;
};

template <>
struct LogisticTableFor16Bits<SingleForBfloat16, GeluForm::sigmoid> {
  static constexpr float bound = 64.0f, rate = 0x1.3a4cbep-6f;
};

template <>
struct LogisticTableFor16Bits<SingleForFloat16, GeluForm::tanh> {
  static constexpr float bound = 7.0f, rate = 0x1.26aec2p-4f, cubic = 0x1.a5a7d0p-9f;
};

template <>
struct LogisticTableFor16Bits<SingleForFloat16, GeluForm::sigmoid> {
  static constexpr float bound = 20.0f, rate = 0x1.3a4cbep-4f;
};

// gelu(-a) = -a / (1 + 2^v).
template <class Precision, GeluForm F>
BRIDGE_HD float gelu_logistic_for_16_bits(float h) {
  using Table = LogisticTableFor16Bits<Precision, F>;
  using Constants = LogisticConstants<Precision>;
  const float a = min_keep_nan(Table::bound, absolute(h));
  float rate = Table::rate;
  if constexpr (F == GeluForm::tanh) rate = fma(Table::cubic, a * a, rate);
  const float power =
      power_of_fixed<Precision, Constants::whole_bits>(fma(rate, a, Constants::first));
  const RoughReciprocal r = reciprocal_for_16_bits<Precision, Constants::lift>(
      fma(power, Constants::gain, Constants::constant));
  return fma(a * r.seed, -r.factor, positive_part(h));
}

// Constants for the derivative of the logistic forms, which logistic_for_16_bits.h computes:
// rate * a is unit * w / ln 2, and slope is one * w'. At the bound the product underflows to 0, as
// in SiluTable. Error 2^-17.7.
template <class Precision, GeluForm F>
struct SlopeTable;

template <>
struct SlopeTable<SingleForBfloat16, GeluForm::tanh> {
  static constexpr float unit = 256.0f;
  static constexpr int lift = -13;
  static constexpr float constant = 0x1.ff0536p-40f;
  static constexpr float bound = 10.9375f, rate = 0x1.26aec2p+9f, cubic = 0x1.a5a7d0p+4f;
  static constexpr float square = 0x1.898088p+18f, linear = 0x1.803faep+28f;
  static constexpr float rest = 0x1.94fc1ap+31f;
  static constexpr float one = 0x1.ac92eep-1f, slope = 0x1.55f3d8p+0f;
  static constexpr float slope_cubic = 0x1.6ef844p-3f;
};

template <>
struct SlopeTable<SingleForBfloat16, GeluForm::sigmoid> : LogisticPowers<SingleForBfloat16> {
  static constexpr float bound = 64.25f, rate = 0x1.3a4cbep+9f, slope = 0x1.6cf050p+0f;
};

template <>
struct SlopeTable<SingleForFloat16, GeluForm::sigmoid> : LogisticPowers<SingleForFloat16> {
  static constexpr float bound = 64.25f, rate = 0x1.3a4cbep+6f, slope = 0x1.49bb1ep-1f;
};

template <class Precision, GeluForm F>
BRIDGE_HD float gelu_slope_for_16_bits(float h) {
  using Table = SlopeTable<Precision, F>;
  const float a = min_keep_nan(Table::bound, absolute(h));
  float rate = Table::rate;
  float slope = Table::slope;
  if constexpr (F == GeluForm::tanh) {
    rate = fma(Table::cubic, a * a, rate);
    slope = fma(Table::slope_cubic, a * a, slope);
  }
  return logistic_slope_for_16_bits<Precision, Table>(h, a, rate, slope);
}

template <class Precision, GeluForm F, int Order>
BRIDGE_HD float gelu_for_16_bits(float h) {
  if constexpr (ShareTable<Precision, F, Order>::exists) {
    return gelu_by_logarithm<Precision, F, Order>(h);
  } else if constexpr (Order == 0) {
    return gelu_logistic_for_16_bits<Precision, F>(h);
  } else {
    return gelu_slope_for_16_bits<Precision, F>(h);
  }
}

}  // namespace bridge::math::detail
