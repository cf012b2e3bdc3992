// Softmax and its Jacobian for one element, and the values that the elements of a row share. The
// kernels written by hand use these functions; bridge/catalogue/softmax_programs.py states the same
// as programs. A row is computed in four steps:
//
// 1. a key for each element, -infinity for a hidden one;
// 2. the largest key, which determines the row's shift;
// 3. the powers, and the sum of their terms in the tree of drivers/rows/row_sum_tree.h; a hidden
//    element has the term 0;
// 4. power times the inverse of the sum. If the inverse is NaN, hidden elements must be set to 0
//    separately.
//
// The error of float32, in units u = 2^-24 of a result: its bound (2 + |scale x - max|) 2^-23 is at
// least 4 u. A power has at most 1.4 u: its own rounding, at most u where it is just above a power
// of two and the polynomial's argument is small; the exponent's difference from the largest has no
// error. The sum has the errors of its powers and little more. The product with the inverse adds u.
#pragma once

#include <type_traits>

#include "math/exp2.h"
#include "math/power_for_16_bits.h"
#include "math/precision.h"
#include "math/scalar.h"

namespace bridge::math {

// The scale in the form that powers use: scale * (x - y) * log2(e) = (half * x - half * y) * rate.
// The sign is in `half`, so that rate >= 0. x is halved because x - y may overflow where x and y do
// not. For results of 16 bits `half` is the sign alone, rate is in the unit of power_of_fixed, and
// floor is the least argument given to power_of_fixed.
template <class Real>
struct SoftmaxScale {
  Real half;      // +-1/2; for very small scales +-2^-126 (float), +-2^-1022 (double); 0 for 0
  Real rate;      // never denormal
  Real rate_low;  // the rounding error of rate
  Real floor;     // -bound / rate: for a smaller key - shift every result has underflowed
};

namespace detail {

template <class Real>
struct SoftmaxTable;

// A power is stored as 2^lift e^(...), at most 2^(lift + 1/2): powers and their sums are always
// normal numbers, and the last product rounds into the denormals once. 2^-bound is below half of
// the smallest denormal, and 2^(lift - bound) is normal.
template <>
struct SoftmaxTable<float> {
  static constexpr int bound = 180;
  static constexpr int most_halvings = 125;
};

template <>
struct SoftmaxTable<double> {
  static constexpr int bound = 1140;
  static constexpr int most_halvings = 1021;
};

// For results of 16 bits. The largest key gives power_of_fixed the argument `top`. At `least`,
// below which no result shows, all bits of the power are 0 (the polynomial of power_of_fixed is
// exactly 2^-5 there).
template <class Precision>
struct SoftmaxTableFor16Bits;

template <>
struct SoftmaxTableFor16Bits<SingleForBfloat16> {
  static constexpr int whole_bits = 8;
  static constexpr float top = 0x1.96p+1f;  // v = 150
  static constexpr float least = 0x1.02c150p+1f;
};

template <>
struct SoftmaxTableFor16Bits<SingleForFloat16> {
  static constexpr int whole_bits = 6;
  static constexpr float top = 0x1.f4p+1f;  // v = 61
  static constexpr float least = 0x1.0b9bbcp+1f;
};

}  // namespace detail

// For a finite scale. Host code, run once for a call.
template <class Precision>
inline SoftmaxScale<typename Precision::real> softmax_scale(double scale) {
  using Real = typename Precision::real;
  using Table = detail::SoftmaxTable<Real>;
  constexpr double log2e = 0x1.71547652b82fep+0, log2e_low = 0x1.777d0ffda0d24p-56;
  constexpr bool narrow = sizeof(Real) == sizeof(float);
  // Below this, x is scaled down further, so that the floor is finite and an infinite x lies below
  // it. The underflow of x loses far less than one unit of scale * x.
  constexpr double small = narrow ? 0x1p-60 : 0x1p-500;
  // The limit for float: with a smaller rate every finite difference gives 2^0.
  constexpr double smallest_rate = narrow ? 0x1p-100 : 0;
  constexpr double largest_size = Format<Real>::largest / 4;
  const double sign = scale < 0 ? -1.0 : 1.0;
  double size = scale < 0 ? -scale : scale;
  if (size > largest_size) size = largest_size;
  if constexpr (is_for_16_bits<Precision>) {
    using Fixed = detail::SoftmaxTableFor16Bits<Precision>;
    return {Real(size == 0 ? 0.0 : sign),
            Real(size * log2e * power_of_two<double>(1 - Fixed::whole_bits)), 0, Fixed::least};
  }
  if (size == 0) return {Real(0), Real(0), Real(0), Real(-1)};  // NaN at infinity, else 2^0
  const int halvings = size < small ? Table::most_halvings : 0;
  const double half = power_of_two<double>(-1 - halvings);
  const double twice = size * power_of_two<double>(halvings) * 2;
  double rate = twice * log2e;
  double low = __builtin_fma(twice, log2e, -rate) + twice * log2e_low;
  if (narrow) {
    const double rounded = static_cast<float>(rate);
    low = (rate - rounded) + low;
    rate = rounded;
  }
  if (rate < smallest_rate) rate = smallest_rate, low = 0;
  return {Real(sign * half), Real(rate), Real(low), Real(-Table::bound / rate)};
}

// The key of a visible element.
template <class Real>
BRIDGE_HD Real softmax_key(Real x, const SoftmaxScale<Real>& scale) {
  return scale.half * x;
}

// The larger of a key and the largest so far, which starts at -infinity; keys come in any order.
// For float, a NaN wins; for double, NaN is skipped and spreads through the sum.
BRIDGE_HD float softmax_larger(float key, float largest) {
#if defined(__CUDA_ARCH__)
  return max_keep_nan(key, largest);
#else
  return key > largest || key != key ? key : largest;
#endif
}

BRIDGE_HD double softmax_larger(double key, double largest) { return larger_but_nan(key, largest); }

// The reference point of a row's keys. The power of a key is 2^((key - shift) rate + offset), where
// shift rate - offset is about largest rate.
template <class Real>
struct SoftmaxShift {
  Real shift;
  Real magic;  // its sum with an exponent has the power's exponent field in its low bits
  Real floor;  // for a smaller key - shift every result has underflowed
};

// The reference point for results of 16 bits: key * rate + offset is the fixed-point number of the
// key's power.
struct SoftmaxLine {
  float largest;
  float offset;
  float rate;
};

template <class Precision>
using SoftmaxShiftFor = std::conditional_t<is_for_16_bits<Precision>, SoftmaxLine,
                                           SoftmaxShift<typename Precision::real>>;

namespace detail {

// 2^f times 2^(lift + n); `shifted` has the exponent field of the latter in its low bits.
template <class Real>
BRIDGE_HD Real lifted_power(Real f, Real shifted) {
  const Real lifted = bit_cast<Real>(
      static_cast<typename Format<Real>::Bits>(to_bits(shifted) << Format<Real>::mantissa_bits));
  return fma(f, polynomial<Exp2Table<Real>>(f), Real(1)) * lifted;
}

// The keys of a row share the rounding of the offset, which cancels in the results as long as it is
// small. Where the largest exponent is beyond 2^20, only those 16-bit keys that equal the largest
// have a result, so that a smaller rate is enough.
template <class Precision>
BRIDGE_HD SoftmaxLine softmax_line(float largest, float rate) {
  using Table = SoftmaxTableFor16Bits<Precision>;
  constexpr int limit = 21 - Table::whole_bits;
  constexpr std::uint32_t exponent = 0x7F800000u;
  if (absolute(largest * rate) > power_of_two<float>(limit)) {
    rate = bit_cast<float>((static_cast<std::uint32_t>(254 + limit) << 23) -
                           (to_bits(largest) & exponent));
  }
  return {largest, fma(-largest, rate, Table::top), rate};
}

}  // namespace detail

// The shift from the largest key. It is 0 for a row whose elements are all -infinity, NaN or
// hidden, so that -infinity is not subtracted from itself.
//
// The rounding of key - largest would be |scale x - max| units of 2^-24 of a power, and the same
// for all equal elements: a row of one 0 and 4095 numbers near -8 would lose 5 units of its sum. So
// where the exponents are moderate, only a whole number is subtracted, which is exact. Elsewhere
// every key whose power counts lies within a factor of two of the largest, and the difference is
// exact.
template <class Precision, class Real>
BRIDGE_HD SoftmaxShiftFor<Precision> softmax_shift(Real largest, const SoftmaxScale<Real>& scale) {
  using Table = detail::Exp2Table<Real>;
  if (largest < -Format<Real>::largest) largest = Real(0);
  if constexpr (is_for_16_bits<Precision>) {
    return detail::softmax_line<Precision>(largest, scale.rate);
  } else {
    constexpr Real moderate = 4 * detail::SoftmaxTable<Real>::bound;
    const bool is_moderate = absolute(largest * scale.rate) < moderate;
    const Real whole = fma(largest, scale.rate, Table::magic) - Table::magic;
    // No branches: all elements of a row share these values, and a compiler computes them once.
    const Real magic = Table::magic - whole, floor = scale.floor + largest;
    return {is_moderate ? Real(0) : largest, is_moderate ? magic : Table::magic,
            is_moderate ? floor : scale.floor};
  }
}

// 2^lift e^(...): about 2^lift at the largest key, 0 where it has underflowed, NaN for a key of NaN
// and for an infinite key that is the shift. For results of 16 bits it is another power of two
// times e^(...), and 0 for NaN, which reaches the sum through the largest key.
template <class Precision>
BRIDGE_HD float softmax_power(float key, const SoftmaxLine& row,
                              float least = detail::SoftmaxTableFor16Bits<Precision>::least) {
  using Table = detail::SoftmaxTableFor16Bits<Precision>;
  const float t = fma(key, row.rate, row.offset);
#if defined(__CUDA_ARCH__)
  const float held = fmaxf(t, least);
#else
  const float held = t > least ? t : least;
#endif
  return detail::power_of_fixed<Precision, Table::whole_bits>(held);
}

template <class Precision, class Real>
BRIDGE_HD Real softmax_power(Real key, const SoftmaxShift<Real>& row,
                             const SoftmaxScale<Real>& scale) {
  const Real t = key - row.shift;
  // The low bits are the exponent field of 2^(lift + n), n = round(t rate) + offset.
  const Real shifted = fma(t, scale.rate, row.magic);
  const Real n = shifted - row.magic;
  const Real f = fma(t, scale.rate, -n);
  const Real power = detail::lifted_power(fma(t, scale.rate_low, f), shifted);
  return t < row.floor ? Real(0) : power;
}

// The maximum with a number unknown to the compiler is one instruction of a CPU, with a constant
// two.
template <class Precision>
BRIDGE_HD float softmax_power(float key, const SoftmaxLine& row, const SoftmaxScale<float>& scale) {
  return softmax_power<Precision>(key, row, scale.floor);
}

// A term of a row's sum: the power itself, except for float32. There the tree would round twelve
// times by up to a unit each, in a row of one large power and thousands of small ones. So a power
// is split into a multiple of 2^(lift - 11) and the rest, and the tree adds both: sums of coarse
// parts are exact up to 2^13, and sums of the rest stay below 4096 2^-12.
template <class Real>
struct SoftmaxParts {
  Real coarse;
  Real fine;

  SoftmaxParts() = default;
  BRIDGE_HD explicit constexpr SoftmaxParts(Real both) : coarse(both), fine(both) {}
  BRIDGE_HD constexpr SoftmaxParts(Real coarse_part, Real fine_part)
      : coarse(coarse_part), fine(fine_part) {}
};

template <class Real>
BRIDGE_HD SoftmaxParts<Real> operator+(const SoftmaxParts<Real>& a, const SoftmaxParts<Real>& b) {
  return {a.coarse + b.coarse, a.fine + b.fine};
}

template <class Precision>
using SoftmaxTerm =
    std::conditional_t<std::is_same_v<Precision, Single>, SoftmaxParts<typename Precision::real>,
                       typename Precision::real>;

// power + coarse_magic rounds to a multiple of 2^(lift - 11): the coarse part.
template <class Real>
constexpr Real coarse_magic = 0x1.8p12f * power_of_two<Real>(detail::Exp2Table<Real>::lift);

template <class Precision, class Real>
BRIDGE_HD SoftmaxTerm<Precision> softmax_term(Real power) {
  if constexpr (std::is_same_v<Precision, Single>) {
    constexpr Real magic = coarse_magic<Real>;
    const Real coarse = (power + magic) - magic;
    return {coarse, power - coarse};
  } else {
    return power;
  }
}

// The coarse part of a power; the fine part is the rest.
template <class Real>
BRIDGE_HD Real exp_coarse(Real power) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    return softmax_term<Single>(power).coarse;
  } else {
    return power;
  }
}

// 1 / total and its rounding error, which would otherwise affect every element of the row.
template <class Real>
struct SoftmaxInverse {
  Real high;
  Real low;
};

// The inverse of the sum of the powers, total + rest; 0 if total is 0, in a row without a finite or
// NaN key.
template <class Real>
BRIDGE_HD SoftmaxInverse<Real> softmax_inverse(Real total, Real rest = Real(0)) {
#if defined(__CUDA_ARCH__)
  Real quotient;
  if constexpr (sizeof(Real) == sizeof(float)) {
    quotient = __frcp_rn(total);
  } else {
    quotient = __drcp_rn(total);
  }
#else
  const Real quotient = Real(1) / total;
#endif
  const Real high = total == 0 ? Real(0) : quotient;
  return {high, high * (fma(-total, high, Real(1)) - rest * high)};
}

// The inverse for results of 16 bits, without a division; NaN if the largest key is NaN or
// infinite.
BRIDGE_HD SoftmaxInverse<float> softmax_inverse(float total, const SoftmaxLine& row) {
  const float sum = fma(row.largest, 0.0f, total);
  const float seed = detail::rough_reciprocal<float, 0>(sum);
  const float error = fma(-sum, seed, 1.0f);
  const float once = fma(seed, fma(error, error, error), seed);
  const float twice = fma(once, fma(-sum, once, 1.0f), once);
  return {sum == 0 ? 0.0f : twice, 0.0f};
}

template <class Real>
BRIDGE_HD SoftmaxInverse<Real> softmax_inverse(const SoftmaxParts<Real>& sum) {
  // The rounding error of coarse + fine, whichever is larger.
  const Real total = sum.coarse + sum.fine;
  const Real fine = total - sum.coarse;
  const Real rest = (sum.coarse - (total - fine)) + (sum.fine - fine);
  return softmax_inverse(total, rest);
}

// The inverse where the sum itself shows NaN, so that the row is not needed.
template <class Term, class Real>
BRIDGE_HD SoftmaxInverse<Real> softmax_inverse(const Term& sum, const SoftmaxShift<Real>&) {
  return softmax_inverse(sum);
}

// The result of an element; NaN if the inverse is NaN.
template <class Precision, class Real>
BRIDGE_HD Real softmax_value(Real power, const SoftmaxInverse<Real>& inverse) {
  if constexpr (is_for_16_bits<Precision>) {
    return power * inverse.high;
  } else {
    return fma(power, inverse.high, power * inverse.low);
  }
}

// The scale as the factor of every derivative, clamped to the finite numbers.
template <class Real>
BRIDGE_HD Real softmax_derivative_scale(double scale) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    constexpr double largest = Format<float>::largest;
    if (scale > largest) return Real(largest);
    if (scale < -largest) return Real(-largest);
  }
  return static_cast<Real>(scale);
}

// The Jacobian of softmax at its value u, times v: scale (u (v - <u, v>)), where <u, v> is the sum
// of softmax_jacobian_term. An element with u = 0 contributes nothing and receives nothing.
template <class Real>
BRIDGE_HD Real softmax_jacobian_term(Real u, Real v) {
  return u == 0 ? Real(-0.0) : u * v;
}

template <class Real>
BRIDGE_HD Real softmax_jacobian(Real u, Real v, Real dot, Real scale) {
  return u == 0 ? Real(0) : scale * (u * (v - dot));
}

}  // namespace bridge::math
