// GELU for calls whose every operand is 16-bit: float arithmetic with the corrections left out
// that a rounding to 16 bits does not show, about 2^-22 where a float16 result is normal and
// 2^-18 in the tail that only bfloat16 reaches. The formulas are those of gelu_logistic.h and
// gelu_erf.h.
#pragma once

#include "math/gelu_erf.h"
#include "math/gelu_logistic.h"

namespace bridge::math::detail {

// 1 + g, of which the first coefficient holds the 1: 2^-23 below a = 5.7, 2^-19 above.
struct ErfTableFor16Bits {
  static constexpr float offset = 3.25f, scale = 2.0f, shift = -0.8125f;
  static constexpr int degree = 7;
  static constexpr float coefficients[degree + 1] = {
      1 - 0x1.35b612p-3f, -0x1.4d454ep-1f, 0x1.474f82p-2f,  -0x1.4259d4p-4f,
      -0x1.cc945ep-8f,    0x1.1c79b8p-7f,  0x1.ba4f58p-13f, -0x1.ce936ep-11f,
  };
};

constexpr float float_unlift = power_of_two<float>(-Exp2Table<float>::lift);

// The seed's 5 %, cubed, then squared: 2^-24 and rounding.
BRIDGE_HD float reciprocal_for_16_bits(float d) {
  const float seed = rough_reciprocal<float, 0>(d);
  const float error = fma(-d, seed, 1.0f);
  const float once = fma(seed, fma(error, error, error), seed);
  return fma(once, fma(-d, once, 1.0f), once);
}

// tail is 2^lift gelu'(-|h|), and gelu'(|h|) = 1 - gelu'(-|h|).
BRIDGE_HD float first_derivative_for_16_bits(float h, float tail) {
  const bool negative = is_negative(h);
  return fma(tail, negative ? float_unlift : -float_unlift, negative ? 0.0f : 1.0f);
}

template <GeluForm F, int Order>
BRIDGE_HD float logistic_for_16_bits(float h) {
  using Table = LogisticTable<float, F>;
  const float a = min_keep_nan(Table::bound, absolute(h));
  float rate = Table::rate_high + Table::rate_low;
  if constexpr (F == GeluForm::tanh) rate = fma(Table::cubic_high, a * a, rate);
  if constexpr (Order == 0) {
    // a / (1 + 2^v) with 2^-lift taken into the denominator, whose exponent k is added in integers:
    // v stays below 186, and the sum's below 2^123.
    constexpr float magic = 0x1.8p23f - Exp2Table<float>::lift;
    const float shifted = fma(rate, a, magic);
    const float power = exp2_for_16_bits(fma(rate, a, magic - shifted));
    const float scaled = bit_cast<float>((to_bits(shifted) << 23) + to_bits(power));
    const float tail = a * reciprocal_for_16_bits(scaled + float_unlift);
    return fma(tail, -float_unlift, positive_part(h));
  } else {
    const Rounded<float> rounded = round_product(rate, a);
    const float power = exp2_for_16_bits(fma(rate, a, -rounded.k));
    const float reciprocal = reciprocal_for_16_bits(fma(rounded.lifted, float_unlift, power));
    // 1 - a w', summed so that little has been rounded where it cancels against s.
    float rest = fma(-(Table::slope + Table::slope_low), a, 1.0f);
    if constexpr (F == GeluForm::tanh) rest = fma(-Table::slope_cubic, a * a * a, rest);
    const float factor = fma(rest, power, rounded.lifted * float_unlift) * reciprocal;
    return first_derivative_for_16_bits(h, rounded.lifted * reciprocal * factor);
  }
}

template <int Order>
BRIDGE_HD float erf_for_16_bits(float h) {
  using Table = ErfTable<float>;
  const float a = min_keep_nan(Table::bound, absolute(h));
  const float square = a * a;
  const Rounded<float> rounded = round_product(Table::rate_high, square);
  const float power = exp2_for_16_bits(fma(-Table::rate_high, square, rounded.k));
  const float reciprocal = reciprocal_for_16_bits(a + ErfTableFor16Bits::offset);
  float t;
  if constexpr (Order == 0) {  // t = scale a / d + shift with a = d - offset
    t = fma(reciprocal, -ErfTableFor16Bits::scale * ErfTableFor16Bits::offset,
            ErfTableFor16Bits::scale + ErfTableFor16Bits::shift);
  } else {  // one operation more, less rounding where the derivative cancels
    t = fma(a * reciprocal, ErfTableFor16Bits::scale, ErfTableFor16Bits::shift);
  }
  const float ratio = polynomial<ErfTableFor16Bits>(t);
  if constexpr (Order == 0) {
    const float tail = (a * rounded.lifted) * (reciprocal * ratio * power);
    return fma(tail, -float_unlift, positive_part(h));
  } else {
    const float factor = fma(reciprocal, ratio, -a * Table::density);
    return first_derivative_for_16_bits(h, factor * power * rounded.lifted);
  }
}

}  // namespace bridge::math::detail
