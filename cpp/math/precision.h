// Names for the arithmetic of a call.
#pragma once

#include "math/convert.h"

namespace bridge::math {

// float arithmetic for calls whose operands all have one 16-bit type: as accurate as its results
// need.
struct SingleForFloat16 {
  using real = float;
};

struct SingleForBfloat16 {
  using real = float;
};

struct Single {
  using real = float;
};

struct Double {
  using real = double;
};

template <class Precision>
constexpr bool is_for_16_bits = false;
template <>
inline constexpr bool is_for_16_bits<SingleForFloat16> = true;
template <>
inline constexpr bool is_for_16_bits<SingleForBfloat16> = true;

// The precision of a call whose operands all have type T.
template <class T>
struct PrecisionOf;
template <>
struct PrecisionOf<float16> {
  using type = SingleForFloat16;
};
template <>
struct PrecisionOf<bfloat16> {
  using type = SingleForBfloat16;
};
template <>
struct PrecisionOf<float> {
  using type = Single;
};
template <>
struct PrecisionOf<double> {
  using type = Double;
};
template <class T>
using precision_of = typename PrecisionOf<T>::type;

}  // namespace bridge::math
