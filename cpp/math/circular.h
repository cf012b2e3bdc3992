// sin and cos for float and double, with errors of at most 2 units in the last place for every
// finite number; NaN for infinities. |x| is the nearest multiple q pi/2 plus a rest: an integer
// product of the mantissa of x and the bits of 2/pi that matter gives q modulo 4, and the rest in
// fixed point (Payne and Hanek, 1983). No finite number is so near to a multiple that the bits do
// not suffice.
#pragma once

#include "math/exponential.h"

namespace bridge::math {

namespace detail {

// (sin(x) / x - 1) / w in powers of w = x^2, for |x| up to pi/4.
template <class Real>
struct SinTable;

// Error 2^-32.3 relative to sin(x).
template <>
struct SinTable<float> {
  static constexpr int degree = 3;
  static constexpr float coefficients[degree + 1] = {
      -0x1.555556p-3f,
      0x1.111166p-7f,
      -0x1.a04a74p-13f,
      0x1.7864ccp-19f,
  };
};

// Error 2^-55.5 relative to sin(x).
template <>
struct SinTable<double> {
  static constexpr int degree = 5;
  static constexpr double coefficients[degree + 1] = {
      -0x1.5555555555555p-3, 0x1.1111111110bb2p-7,   -0x1.a01a019e83816p-13,
      0x1.71de379654304p-19, -0x1.ae600aca92c64p-26, 0x1.5e0b05bff20f2p-33,
  };
};

// (cos(x) - 1 + w / 2) / w^2 in powers of w = x^2, for |x| up to pi/4.
template <class Real>
struct CosTable;

// Error 2^-33.0 relative to cos(x).
template <>
struct CosTable<float> {
  static constexpr int degree = 2;
  static constexpr float coefficients[degree + 1] = {
      0x1.55554ap-5f,
      -0x1.6c0c2ap-10f,
      0x1.99e912p-16f,
  };
};

// Error 2^-59.4 relative to cos(x).
template <>
struct CosTable<double> {
  static constexpr int degree = 5;
  static constexpr double coefficients[degree + 1] = {
      0x1.5555555555555p-5,   -0x1.6c16c16c16967p-10, 0x1.a01a019f4e9b4p-16,
      -0x1.27e4fa17bf139p-22, 0x1.1eeb68cd22f56p-29,  -0x1.907d8f29fe831p-37,
  };
};

// |x| = quarters pi/2 + high + low modulo 2 pi.
template <class Real>
struct Angle {
  Real high;
  Real low;
  std::uint32_t quarters;
};

// Returns the 32 bits that begin `count` bits, 0 to 31, after the first of two words.
BRIDGE_HD std::uint32_t joined(std::uint32_t first, std::uint32_t second, std::uint32_t count) {
  return (first << count) | ((second >> 1) >> (31 - count));
}

BRIDGE_HD std::uint64_t joined(std::uint64_t first, std::uint64_t second, std::uint32_t count) {
  return (first << count) | ((second >> 1) >> (63 - count));
}

// Returns the upper half of a product.
BRIDGE_HD std::uint64_t upper_product(std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<std::uint64_t>((static_cast<Wide>(a) * b) >> 64);
#endif
}

// The turn of |x| from pi/4 on: 2/pi |x| modulo 4 is quarters + (high + low) 2^-kScale.
//
// Words of 32 bits are chosen by comparisons, so that loops are vectorised. With a mantissa of 32
// bits and a window of 96 bits of 2/pi the product modulo 2^96 begins with the two bits of the
// quarter. The first word of the window is one of zeros, up to a number of 8.
BRIDGE_HD Angle<float> turn_of(float size) {
  const std::uint32_t bits = to_bits(size);
  const std::uint32_t mantissa = (bits << 8) | 0x80000000u;
  // 30 from pi/4 on. Below it and for NaN the result is not used, but the shifts stay in range.
  const std::uint32_t place = (bits >> 23) - 96;
  const std::uint32_t word = place >> 5, count = place & 31u;
  std::uint32_t w0 = 0, w1 = 0, w2 = 0xA2F9836Eu, w3 = 0x4E441529u;
  w0 = word == 1 ? 0u : w0, w1 = word == 1 ? 0xA2F9836Eu : w1;
  w2 = word == 1 ? 0x4E441529u : w2, w3 = word == 1 ? 0xFC2757D1u : w3;
  w0 = word == 2 ? 0xA2F9836Eu : w0, w1 = word == 2 ? 0x4E441529u : w1;
  w2 = word == 2 ? 0xFC2757D1u : w2, w3 = word == 2 ? 0xF534DDC0u : w3;
  w0 = word == 3 ? 0x4E441529u : w0, w1 = word == 3 ? 0xFC2757D1u : w1;
  w2 = word == 3 ? 0xF534DDC0u : w2, w3 = word == 3 ? 0xDB629599u : w3;
  w0 = word == 4 ? 0xFC2757D1u : w0, w1 = word == 4 ? 0xF534DDC0u : w1;
  w2 = word == 4 ? 0xDB629599u : w2, w3 = word == 4 ? 0x3C439041u : w3;
  const std::uint64_t first = joined(w0, w1, count);
  const std::uint64_t second = joined(w1, w2, count);
  const std::uint64_t third = joined(w2, w3, count);
  const std::uint64_t product =
      ((mantissa * first) << 32) + mantissa * second + ((mantissa * third) >> 32);
  const std::uint64_t half = (product >> 61) & 1;
  const std::uint64_t sign = 0 - half;
  const std::uint64_t rest = ((product << 2) ^ sign) - sign;
  // Three floats without rounding, of which the first two numbers of 24 bits.
  const auto upper = static_cast<std::uint32_t>(rest >> 32);
  const auto lower = static_cast<std::uint32_t>(rest);
  const auto a = static_cast<float>(static_cast<std::int32_t>(upper >> 8));
  const auto b =
      static_cast<float>(static_cast<std::int32_t>(((upper & 0xFFu) << 16) | (lower >> 16)));
  const auto c = static_cast<float>(static_cast<std::int32_t>(lower & 0xFFFFu));
  const float small = fma(c, 0x1p-16f, b);
  const float high = fma(small, 0x1p-24f, a);
  const float low = fma(small, 0x1p-24f, a - high);
  const float signed_one = half != 0 ? -0x1p-24f : 0x1p-24f;
  return {high * signed_one, low * signed_one,
          static_cast<std::uint32_t>(product >> 62) + static_cast<std::uint32_t>(half)};
}

// Returns the number of zeros above the first one of a number that is not 0.
BRIDGE_HD std::uint32_t leading_zeros(std::uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__clzll(static_cast<long long>(bits)));
#else
  std::uint32_t zeros = 0;
  for (std::uint32_t half = 32; half != 0; half >>= 1) {
    const bool is_clear = (bits >> (64 - half)) == 0;
    zeros += is_clear ? half : 0;
    bits <<= is_clear ? half : 0;
  }
  return zeros;
#endif
}

// The bits of 2/pi in words of 64, after two words of zeros. A static variable of an inline
// function would be one symbol of all instruction sets, and device code reads no other table.
#define BRIDGE_TWO_OVER_PI                                                                  \
  0, 0, 0xA2F9836E4E441529u, 0xFC2757D1F534DDC0u, 0xDB6295993C439041u, 0xFE5163ABDEBBC561u, \
      0xB7246E3A424DD2E0u, 0x06492EEA09D1921Cu, 0xFE1DEB1CB129A73Eu, 0xE88235F52EBB4484u,   \
      0xE99C7026B45F7E41u, 0x3991D639835339F4u, 0x9C845F8BBDF9283Bu, 0x1FF897FFDE05980Fu,   \
      0xEF2F118B5A0A6D1Fu, 0x6D367ECF27CB09B7u, 0x4F463F669E5FEA2Du, 0x7527BAC7EBE5F17Bu,   \
      0x3D0739F78A5292EAu, 0x6BFB5FB11F8D5D08u
#if !defined(__CUDA_ARCH__)
constexpr std::uint64_t kTwoOverPi[] = {BRIDGE_TWO_OVER_PI};
#endif

// The same with words of 64 bits and a window of 192 bits; the rest has 128 bits.
BRIDGE_HD Angle<double> turn_of(double size) {
#if defined(__CUDA_ARCH__)
  static constexpr std::uint64_t words[] = {BRIDGE_TWO_OVER_PI};
#else
  const std::uint64_t* const words = kTwoOverPi;
#endif
  const std::uint64_t bits = to_bits(size);
  const std::uint64_t mantissa = (bits << 11) | 0x8000000000000000u;
  const auto exponent = static_cast<std::uint32_t>(bits >> 52);
  const std::uint32_t held = exponent < 2046 ? exponent : 2046u;
  const std::uint32_t place = (held > 1022 ? held : 1022u) - 960;
  const std::uint32_t word = place >> 6, count = place & 63u;
  const std::uint64_t first = joined(words[word], words[word + 1], count);
  const std::uint64_t second = joined(words[word + 1], words[word + 2], count);
  const std::uint64_t third = joined(words[word + 2], words[word + 3], count);
  const std::uint64_t middle = mantissa * second;
  const std::uint64_t lower = middle + upper_product(mantissa, third);
  const std::uint64_t upper =
      mantissa * first + upper_product(mantissa, second) + (lower < middle ? 1u : 0u);
  const std::uint64_t half = (upper >> 61) & 1;
  const std::uint64_t sign = 0 - half;
  const std::uint64_t low_rest = ((lower << 2) ^ sign) - sign;
  const std::uint64_t carry = (low_rest == 0 ? 1u : 0u) & half;
  const std::uint64_t high_rest = (((upper << 2) | (lower >> 62)) ^ sign) + carry;
  // The first 53 bits that count, and the 53 bits after them, as two doubles without rounding.
  const bool is_small = high_rest == 0;
  const std::uint64_t top = is_small ? low_rest : high_rest;
  const std::uint64_t next = is_small ? 0 : low_rest;
  const std::uint32_t zeros = leading_zeros(top | 1);
  const std::uint64_t normal = joined(top, next, zeros);
  const auto high = static_cast<double>(static_cast<std::int64_t>(normal >> 11));
  const auto low = static_cast<double>(static_cast<std::int64_t>(normal & 0x7FFu));
  const double unit = bit_cast<double>(
      (static_cast<std::uint64_t>(1023 - 53 - zeros - (is_small ? 64 : 0)) << 52) | (half << 63));
  return {high * unit, low * (unit * 0x1p-11),
          static_cast<std::uint32_t>(upper >> 62) + static_cast<std::uint32_t>(half)};
}

template <class Real>
BRIDGE_HD Angle<Real> angle_of(Real size) {
  constexpr bool narrow = sizeof(Real) == sizeof(float);
  constexpr Real quarter = narrow ? 0x1.921fb6p+0 : 0x1.921fb54442d18p+0;
  constexpr Real quarter_low = narrow ? -0x1.777a5cp-25 : 0x1.1a62633145c07p-54;
  constexpr Real eighth = narrow ? 0x1.921fb6p-1 : 0x1.921fb54442d18p-1;
  const Angle<Real> turn = turn_of(size);
  const Real high = turn.high * quarter;
  const Real low = fma(turn.high, quarter, -high) + fma(turn.high, quarter_low, turn.low * quarter);
  const bool is_near = size <= eighth;
  const bool is_finite = size <= Format<Real>::largest;
  const Real rest = is_near ? size : high;
  return {is_finite ? rest : bit_cast<Real>(Format<Real>::canonical_nan), is_near ? Real(0) : low,
          is_near ? 0u : turn.quarters};
}

// Returns the sine of an angle, or the cosine if it is an odd number of quarters; the signs follow
// from the quarters.
template <class Real>
BRIDGE_HD Real sine_of(const Angle<Real>& angle) {
  const Real r = angle.high;
  const Real w = r * r;
  const Real half = Real(0.5) * w;
  const Real near_one = 1 - half;
  const Real sine = r + fma(r * w, polynomial<SinTable<Real>>(w), angle.low * near_one);
  const Real missing = (1 - near_one) - half;
  const Real cosine =
      near_one + fma(w * w, polynomial<CosTable<Real>>(w), fma(-r, angle.low, missing));
  const Real y = (angle.quarters & 1u) != 0 ? cosine : sine;
  return (angle.quarters & 2u) != 0 ? negated(y) : y;
}

}  // namespace detail

template <class Real>
BRIDGE_HD Real sin(Real x) {
  const Real y = detail::sine_of(detail::angle_of(absolute(x)));
  return is_negative(x) ? negated(y) : y;
}

template <class Real>
BRIDGE_HD Real cos(Real x) {
  detail::Angle<Real> angle = detail::angle_of(absolute(x));
  angle.quarters += 1;
  return detail::sine_of(angle);
}

}  // namespace bridge::math
