// Softmax and its derivatives, element by element, and what a row has in common. A row is computed
// in four steps: a key for each element, -infinity where it is hidden; the largest key, from which
// the row's shift follows; the powers, and the sum of their terms (in the tree of
// walks/rows/row_sum_tree.h), hidden ones being 0; power times the sum's inverse. Where that is
// NaN, what is hidden must be set to 0 by itself.
//
// How exact float32 is, in units u = 2^-24 of a result; (2 + |scale x - max|) 2^-23 is 4 u and
// more: a power lacks at most 1.4 u (its own rounding, at most u where it is just above a power of
// two and the polynomial's argument is small; there is no error in the exponent's difference from
// the largest), the sum what its powers lack and little more, the product with the inverse u.
#pragma once

#include <type_traits>

#include "math/exp2.h"
#include "math/power_for_16_bits.h"
#include "math/precision.h"
#include "math/scalar.h"

namespace bridge::math {

// scale as the powers take it: scale * (x - y) * log2(e) = (half * x - half * y) * rate, with the
// sign in `half` and so rate >= 0. Halves, because x - y overflows where x and y do not. For
// results of 16 bits `half` is the sign alone, the rate in the unit of power_of_fixed, and the
// floor the least it is asked for.
template <class Real>
struct SoftmaxScale {
  Real half;      // +-1/2; with very small scales +-2^-126 (float), +-2^-1022 (double); 0 with 0
  Real rate;      // no denormal
  Real rate_low;  // what rate lacks
  Real floor;     // -bound / rate: at smaller keys (less the shift) every result has underflowed
};

namespace detail {

template <class Real>
struct SoftmaxTable;

// The powers are carried as 2^lift e^(...), at most 2^(lift + 1/2): they and their sum never leave
// the normal numbers, and the last product rounds into the denormals once. 2^-bound is below half
// the smallest denormal, 2^(lift - bound) is normal.
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

// For results of 16 bits. v of the largest key is `top`; at `least`, below which no result shows,
// the power is 0, its bits and all (power_of_fixed reaches 2^-5 exactly there).
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

// For a finite scale. Host code, once for a call.
template <class Precision>
inline SoftmaxScale<typename Precision::real> softmax_scale(double scale) {
  using Real = typename Precision::real;
  using Table = detail::SoftmaxTable<Real>;
  constexpr double log2e = 0x1.71547652b82fep+0, log2e_low = 0x1.777d0ffda0d24p-56;
  constexpr bool narrow = sizeof(Real) == sizeof(float);
  // Below this x is halved further, so that the floor is finite and an infinite x lies below it;
  // what x loses to underflow is far below one unit of scale * x.
  constexpr double small = narrow ? 0x1p-60 : 0x1p-500;
  // This is a float's, below the smallest of which every finite difference gives 2^0.
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

// The key of an element that is not hidden.
template <class Real>
BRIDGE_HD Real softmax_key(Real x, const SoftmaxScale<Real>& scale) {
  return scale.half * x;
}

// The largest key, in any order; it begins at -infinity. That of floats is NaN where one is; in
// double NaN is passed over, and spreads by the sum.
BRIDGE_HD float softmax_larger(float key, float largest) {
#if defined(__CUDA_ARCH__)
  return max_keep_nan(key, largest);
#else
  return key > largest || key != key ? key : largest;
#endif
}

BRIDGE_HD double softmax_larger(double key, double largest) { return larger_but_nan(key, largest); }

// What a row's keys are measured from. The power of a key is 2^((key - shift) rate + offset), the
// same power of two for every key apart from rounding: shift rate - offset is about largest rate.
template <class Real>
struct SoftmaxShift {
  Real shift;
  Real
      magic;  // leaves the exponent field of the power in the low bits of its sum with the exponent
  Real floor;  // at smaller keys less the shift every result has underflowed
};

// The same for results of 16 bits: key * rate + offset is the fixed-point number of its power.
struct SoftmaxLine {
  float largest;
  float offset;
  float rate;
};

template <class Precision>
using SoftmaxShiftFor = std::conditional_t<is_for_16_bits<Precision>, SoftmaxLine,
                                           SoftmaxShift<typename Precision::real>>;

namespace detail {

// 2^f times 2^(lift + n), of which `shifted` has the exponent field in its low bits.
template <class Real>
BRIDGE_HD Real lifted_power(Real f, Real shifted) {
  const Real lifted = bit_cast<Real>(
      static_cast<typename Format<Real>::Bits>(to_bits(shifted) << Format<Real>::mantissa_bits));
  return fma(f, polynomial<Exp2Table<Real>>(f), Real(1)) * lifted;
}

// The rounding of the offset is the same for all keys of a row, and no part of its results, as
// long as it is small. Where the largest exponent is beyond 2^20, of all keys of 16 bits only those
// that equal the largest have a result: there a smaller rate will do.
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

// From the largest key: 0 in a row of nothing but -infinity, NaN and hidden elements, which keeps
// the first from being subtracted from itself.
//
// The rounding of key - largest would be |scale x - max| units of 2^-24 of a power, and alike in
// all equal elements: a row of one 0 and 4095 numbers near -8 would lose 5 units of its sum to it.
// So nothing is subtracted where the exponents themselves are moderate, but for a whole number,
// which is exact; and where they are not, every key whose power counts lies within a factor of two
// of the largest, and the difference is exact.
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
    // Without branches: a compiler computes it once for a row's elements, which it is the same for.
    const Real magic = Table::magic - whole, floor = scale.floor + largest;
    return {is_moderate ? Real(0) : largest, is_moderate ? magic : Table::magic,
            is_moderate ? floor : scale.floor};
  }
}

// 2^lift e^(...): about 2^lift at the largest key, 0 where it has underflowed, NaN at a key of NaN
// and at an infinite key whose shift is that infinity. For results of 16 bits another power of two
// times e^(...), and of NaN 0: the sum learns of it from the largest key.
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
  // The exponent field of 2^(lift + n), n = round(t rate) + offset, in the low bits.
  const Real shifted = fma(t, scale.rate, row.magic);
  const Real n = shifted - row.magic;
  const Real f = fma(t, scale.rate, -n);
  const Real power = detail::lifted_power(fma(t, scale.rate_low, f), shifted);
  return t < row.floor ? Real(0) : power;
}

// Of a number that it does not know a CPU's compiler takes the larger in one instruction, of a
// constant in two.
template <class Precision>
BRIDGE_HD float softmax_power(float key, const SoftmaxLine& row, const SoftmaxScale<float>& scale) {
  return softmax_power<Precision>(key, row, scale.floor);
}

// A term of a row's sum: the power itself, but for float32, where the tree's roundings would be
// twelve, each of up to a unit, in a row of one large power and thousands of small ones. There a
// power is cut into a multiple of 2^(lift - 11) and the rest, and both are added in the tree: the
// sums of the coarse parts are exact up to 2^13, those of the rest below 4096 2^-12.
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

// Of a power and this the sum has the coarse part.
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

// The coarse part of a power; the fine one is what the power has beyond it.
template <class Real>
BRIDGE_HD Real exp_coarse(Real power) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    return softmax_term<Single>(power).coarse;
  } else {
    return power;
  }
}

// 1 / total, and what that lacks: its rounding would be that of every element of the row.
template <class Real>
struct SoftmaxInverse {
  Real high;
  Real low;
};

// From the sum of the powers, total + rest; 0 where that is 0, in a row without a finite or NaN
// key.
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

// For results of 16 bits, without a division; NaN where the largest key is NaN or infinite.
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
  // What their addition rounds away, whichever is larger.
  const Real total = sum.coarse + sum.fine;
  const Real fine = total - sum.coarse;
  const Real rest = (sum.coarse - (total - fine)) + (sum.fine - fine);
  return softmax_inverse(total, rest);
}

// The same, where the row itself tells nothing of NaN.
template <class Term, class Real>
BRIDGE_HD SoftmaxInverse<Real> softmax_inverse(const Term& sum, const SoftmaxShift<Real>&) {
  return softmax_inverse(sum);
}

// The result; NaN where the inverse is.
template <class Precision, class Real>
BRIDGE_HD Real softmax_value(Real power, const SoftmaxInverse<Real>& inverse) {
  if constexpr (is_for_16_bits<Precision>) {
    return power * inverse.high;
  } else {
    return fma(power, inverse.high, power * inverse.low);
  }
}

// The factor of every derivative.
template <class Real>
BRIDGE_HD Real softmax_derivative_scale(double scale) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    constexpr double largest = Format<float>::largest;
    if (scale > largest) return Real(largest);
    if (scale < -largest) return Real(-largest);
  }
  return static_cast<Real>(scale);
}

// The Jacobian of softmax at its value u, times v: scale (u (v - <u, v>)), with <u, v> the sum of
// these terms. Where u is 0, nothing comes from the element and nothing reaches it.
template <class Real>
BRIDGE_HD Real softmax_jacobian_term(Real u, Real v) {
  return u == 0 ? Real(-0.0) : u * v;
}

template <class Real>
BRIDGE_HD Real softmax_jacobian(Real u, Real v, Real dot, Real scale) {
  return u == 0 ? Real(0) : scale * (u * (v - dot));
}

// scale (u v - u <v, w> - v <u, w> - w <u, v>), the terms asked for (BRIDGE_SOFTMAX_PRODUCT 1, _U
// 2, _V 4, _W 8; at least one), each added in this order with one rounding.
template <class Real>
BRIDGE_HD Real softmax_derivative(int terms, Real u, Real v, Real w, Real dot_vw, Real dot_uw,
                                  Real dot_uv, Real scale) {
  Real sum = u * v;
  bool begun = (terms & 1) != 0;
  if (terms & 2) sum = begun ? fma(-u, dot_vw, sum) : -(u * dot_vw), begun = true;
  if (terms & 4) sum = begun ? fma(-v, dot_uw, sum) : -(v * dot_uw), begun = true;
  if (terms & 8) sum = begun ? fma(-w, dot_uv, sum) : -(w * dot_uv);
  return scale * sum;
}

}  // namespace bridge::math
