// Sixteen bytes of elements at a time: loads, stores and conversions.
#ifndef BRIDGE_CUDA_VECTOR_H_
#define BRIDGE_CUDA_VECTOR_H_

#include <string.h>

#include <type_traits>

#include "cuda/simt.h"
#include "math/convert.h"

namespace bridge::simt {

template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T element[kCount];
};

// Exact wherever Real is at least as wide as T; kernels ask for nothing else.
template <class Real, class T>
BRIDGE_DEVICE Real widen(T value) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<Real>(math::to_float(value));
  } else {
    return static_cast<Real>(value);
  }
}

// Element e of the words, e known at compile time after unrolling.
template <class Real, class T>
BRIDGE_DEVICE Real widen_element(const Vector16& words, int e) {
  if constexpr (std::is_same_v<T, math::bfloat16>) {
    // The upper half of a word is a float as it stands, but for the other half: one instruction,
    // where taking the 16 bits out first makes three.
    const uint32_t word = words.words[e / 2];
    return math::bit_cast<float>(e % 2 != 0 ? word & 0xffff0000u : word << 16);
  } else {
    Pack<T> pack;
    memcpy(&pack, &words, sizeof pack);
    return widen<Real>(pack.element[e]);
  }
}

template <class T, class Real>
BRIDGE_DEVICE Vector16 round_to_words(const Real (&values)[Pack<T>::kCount]) {
  Pack<T> pack;
#pragma unroll
  for (int e = 0; e < Pack<T>::kCount; ++e) pack.element[e] = math::round_to<T>(values[e]);
  Vector16 words;
  memcpy(&words, &pack, sizeof words);
  return words;
}

}  // namespace bridge::simt

#endif  // BRIDGE_CUDA_VECTOR_H_
