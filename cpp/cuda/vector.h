// Sixteen bytes of elements at a time: loads, stores and conversions.
#ifndef BRIDGE_CUDA_VECTOR_H_
#define BRIDGE_CUDA_VECTOR_H_

#include <string.h>

#include "math/convert.h"
#include "simt.h"

namespace bridge::simt {

template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T element[kCount];
};

template <class T>
BRIDGE_DEVICE Pack<T> to_pack(const Vector16& words) {
  Pack<T> pack;
  memcpy(&pack, &words, sizeof pack);
  return pack;
}

template <class T>
BRIDGE_DEVICE Vector16 to_words(const Pack<T>& pack) {
  Vector16 words;
  memcpy(&words, &pack, sizeof words);
  return words;
}

// Exact wherever Real is at least as wide as T; kernels ask for nothing else.
template <class Real, class T>
BRIDGE_DEVICE Real widen(T value) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<Real>(math::to_float(value));
  } else {
    return static_cast<Real>(value);
  }
}

template <class T, class Real>
BRIDGE_DEVICE Pack<T> round_pack(const Real (&values)[Pack<T>::kCount]) {
  Pack<T> pack;
#pragma unroll
  for (int e = 0; e < Pack<T>::kCount; ++e) pack.element[e] = math::round_to<T>(values[e]);
  return pack;
}

}  // namespace bridge::simt

#endif  // BRIDGE_CUDA_VECTOR_H_
