// The arithmetic that a call is computed in.
#pragma once

#include "math/convert.h"

namespace bridge::math {

// float arithmetic that is as accurate as results of the one 16-bit type need, where every operand
// is of that type.
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
constexpr bool is_for_16_bits<SingleForFloat16> = true;
template <>
constexpr bool is_for_16_bits<SingleForBfloat16> = true;

// The precision of a call whose every operand is of one type.
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
