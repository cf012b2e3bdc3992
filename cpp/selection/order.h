// The order of the numbers of a row, and the arithmetic of a draw, on CPU and CUDA.
//
// An element has a key, an unsigned integer of its size that grows with its value: NaN is above all
// numbers, and zeros are equal. So a set of largest elements is a least key and a number of columns
// that have just this key, and it is found bit by bit from counts alone.
#ifndef BRIDGE_SELECTION_ORDER_H_
#define BRIDGE_SELECTION_ORDER_H_

#include <stdint.h>

#include "math/convert.h"
#include "math/logarithm.h"
#include "math/philox.h"

// In kernels a function may be passed to a function: both then run on the device alone.
#if defined(__CUDACC__)
#define BRIDGE_ORDER __device__ __forceinline__
#else
#define BRIDGE_ORDER inline __attribute__((always_inline))
#endif

namespace bridge::selection {

template <class T>
struct Bits {
  using Key = uint16_t;
  static constexpr Key kInfinity = 0x7c00;
};
template <>
struct Bits<math::bfloat16> {
  using Key = uint16_t;
  static constexpr Key kInfinity = 0x7f80;
};
template <>
struct Bits<float> {
  using Key = uint32_t;
  static constexpr Key kInfinity = 0x7f800000u;
};
template <>
struct Bits<double> {
  using Key = uint64_t;
  static constexpr Key kInfinity = 0x7ff0000000000000u;
};

template <class T>
using KeyOf = typename Bits<T>::Key;
template <class Key>
constexpr Key kSign = static_cast<Key>(Key{1} << (8 * sizeof(Key) - 1));
template <class Key>
constexpr Key kNan = static_cast<Key>(~Key{0});  // no number has this key
// The key of -infinity.
template <class T>
constexpr KeyOf<T> kLowest = static_cast<KeyOf<T>>(~(Bits<T>::kInfinity | kSign<KeyOf<T>>));

template <class T>
BRIDGE_ORDER KeyOf<T> key_of(T x) {
  using Key = KeyOf<T>;
  const auto bits = math::bit_cast<Key>(x);
  const auto size = static_cast<Key>(bits & static_cast<Key>(~kSign<Key>));
  const auto ordered = static_cast<Key>((bits & kSign<Key>) != 0 ? ~bits : bits | kSign<Key>);
  const Key number = size == 0 ? kSign<Key> : ordered;
  return size > Bits<T>::kInfinity ? kNan<Key> : number;
}

// Returns the number with a key that is not NaN's.
template <class T>
BRIDGE_ORDER double number_of(KeyOf<T> key) {
  using Key = KeyOf<T>;
  const auto bits = static_cast<Key>((key & kSign<Key>) != 0 ? key ^ kSign<Key> : ~key);
  return math::to_double(math::bit_cast<T>(bits));
}

// A set of columns: all with a larger key than `least`, and the first `ties` of those that have it.
template <class Key>
struct Kept {
  Key least;
  int64_t ties;
};

// Returns the `wanted` largest; equal ones in increasing columns. count(key) returns the number of
// columns whose key is at least `key`; there are at least as many as wanted, which is not 0.
template <class Key, class Count>
BRIDGE_ORDER Kept<Key> largest(int64_t wanted, const Count& count) {
  Key least = 0;
  for (Key bit = kSign<Key>; bit != 0; bit = static_cast<Key>(bit >> 1)) {
    const auto candidate = static_cast<Key>(least | bit);
    const int64_t found = count(candidate);
    if (found >= wanted) least = candidate;
    if (found == wanted) break;
  }
  const int64_t above = least == kNan<Key> ? 0 : count(static_cast<Key>(least + 1));
  return {least, wanted - above};
}

// The terms of the softmax as integers: e^(x - largest) in units of 2^-40. Their sum is exact for
// up to kMostTerms of them, in any order.
constexpr int64_t kMostTerms = int64_t{1} << 23;

// The difference from the largest logit over the temperature.
struct Scale {
  double largest, temperature;

  BRIDGE_ORDER double below(double x) const {
    return x == largest ? 0.0 : (x - largest) / temperature;
  }
  BRIDGE_ORDER uint64_t weight(double x) const {
    return static_cast<uint64_t>(math::exp(below(x)) * 0x1p40 + 0.5);
  }
};

// Returns the fewest most probable columns of `within` whose part in its sum is at least `part`.
// mass(key) returns the sum of the weights of the columns whose key is at least `key`.
template <class T, class Mass>
BRIDGE_ORDER Kept<KeyOf<T>> most_probable(double part, const Scale& scale,
                                          const Kept<KeyOf<T>>& within, const Mass& mass) {
  using Key = KeyOf<T>;
  const auto above = [&](Key key) {
    return key == kNan<Key> ? uint64_t{0} : mass(static_cast<Key>(key + 1));
  };
  const uint64_t whole = within.least == 0
                             ? mass(Key{0})
                             : above(within.least) + static_cast<uint64_t>(within.ties) *
                                                         scale.weight(number_of<T>(within.least));
  const double exact = part * static_cast<double>(whole);
  auto wanted = static_cast<uint64_t>(exact);
  if (static_cast<double>(wanted) < exact) ++wanted;
  wanted = wanted > whole ? whole : wanted < 1 ? 1 : wanted;
  Key least = 0;
  for (Key bit = kSign<Key>; bit != 0; bit = static_cast<Key>(bit >> 1)) {
    const auto candidate = static_cast<Key>(least | bit);
    if (candidate <= within.least || mass(candidate) >= wanted) least = candidate;
  }
  const uint64_t each = scale.weight(number_of<T>(least)), before = above(least);
  const uint64_t more = wanted > before ? wanted - before : 1;
  const auto ties = static_cast<int64_t>(each == 0 ? 1 : (more + each - 1) / each);
  return {least, least == within.least && ties > within.ties ? within.ties : ties};
}

// A logit plus noise of Gumbel's distribution: the largest sum is at a column that has the
// probability of the softmax. The random word is a number from 2^-33 to 1 - 2^-33.
BRIDGE_ORDER double noisy(double below, uint32_t word) {
  const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return below - math::log(-math::log(uniform));
}

}  // namespace bridge::selection

#endif  // BRIDGE_SELECTION_ORDER_H_
