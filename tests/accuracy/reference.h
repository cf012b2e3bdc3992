// Independent references for GELU and for rounding, in a chosen wide floating-point type.
#pragma once

#include <quadmath.h>

#include <cmath>
#include <cstdint>

#include "math/gelu.h"

namespace accuracy {

using bridge::math::GeluForm;

inline double exp_of(double x) { return std::exp(x); }
inline long double exp_of(long double x) { return expl(x); }
inline __float128 exp_of(__float128 x) { return expq(x); }
inline double erfc_of(double x) { return std::erfc(x); }
inline long double erfc_of(long double x) { return erfcl(x); }
inline __float128 erfc_of(__float128 x) { return erfcq(x); }

// gelu, gelu', gelu'' at a finite h.
template <class Wide>
struct Derivatives {
  Wide order[3];
};

// The relative error of a result away from the zeros is a few times epsilon * h^2 (erf, sigmoid) or
// epsilon * h^4 (tanh), for h up to the underflow of the result. For float results double gives
// 2^-40.
template <class Wide>
Derivatives<Wide> reference(GeluForm form, Wide h) {
  const Wide root_two = static_cast<Wide>(M_SQRT2q);
  const Wide inverse_root_two_pi = static_cast<Wide>(M_2_SQRTPIq) / (2 * root_two);
  if (form == GeluForm::erf) {
    const Wide probability = erfc_of(-h / root_two) / 2;
    const Wide density = inverse_root_two_pi * exp_of(-h * h / 2);
    return {{h * probability, probability + h * density, (2 - h * h) * density}};
  }
  Wide w;
  Wide slope;
  Wide bend;
  if (form == GeluForm::tanh) {
    const Wide c = 4 * inverse_root_two_pi;  // 2 sqrt(2/pi)
    const Wide k = static_cast<Wide>(0.044715Q);
    w = c * (h + k * h * h * h);
    slope = c * (1 + 3 * k * h * h);
    bend = c * 6 * k * h;
  } else {
    slope = static_cast<Wide>(1.702Q);
    w = slope * h;
    bend = 0;
  }
  // e <= 1, so that both probabilities are computed without cancellation.
  const Wide e = exp_of(w < 0 ? w : -w);
  const Wide larger = 1 / (1 + e);
  const Wide smaller = e / (1 + e);
  const Wide p = w < 0 ? smaller : larger;
  const Wide q = w < 0 ? larger : smaller;
  return {{h * p, p * (1 + h * slope * q),
           p * q * (2 * slope + h * bend + h * slope * slope * (q - p))}};
}

// Finds the zero of the first (second) derivative on the negative axis, by bisection.
inline double zero_of_derivative(GeluForm form, int order) {
  double low = order == 1 ? -1.0 : -2.0;
  double high = order == 1 ? -0.5 : -1.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (reference<long double>(form, middle).order[order] < 0 ? low : high) = middle;
  }
  return low;
}

// One unit in the last place at x, for a format with `bits` significant bits and smallest normal
// number 2^emin.
template <class Wide>
Wide unit_in_last_place(Wide x, int bits, int emin) {
  int exponent = 0;
  std::frexp(static_cast<double>(x), &exponent);
  exponent = exponent - 1 < emin || x == 0 ? emin : exponent - 1;
  return static_cast<Wide>(scalbnq(1, exponent - bits + 1));
}

// Rounds x to nearest, ties to even, to a format with unbounded exponents above.
inline long double round_to_format(long double x, int bits, int emin) {
  if (x == 0 || std::isinf(x) || std::isnan(x)) return x;
  const long double unit = unit_in_last_place<long double>(x, bits, emin);
  return rintl(x / unit) * unit;
}

}  // namespace accuracy
