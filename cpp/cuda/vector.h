// Sixteen bytes of elements at a time: loads, stores and conversions that are right at any
// alignment and at the ends of a row.
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

// Which elements exist: those at positions [0, extent). A pack at position p is aligned and has all
// its elements iff 0 <= p < whole; whole is 0 where the addresses do not allow vectors.
struct Span {
  int64_t extent;
  int64_t whole;

  BRIDGE_DEVICE bool is_whole(int64_t position) const {
    return static_cast<uint64_t>(position) < static_cast<uint64_t>(whole);
  }
};

// The pack whose first element is at `address` and has the given position; elements outside of the
// span are not touched and come as zeros.
template <class T>
BRIDGE_DEVICE Pack<T> load_pack(const T* address, int64_t position, const Span& span) {
  Pack<T> pack;
  if (span.is_whole(position)) {
    const Vector16 words = load16(address);
    memcpy(&pack, &words, sizeof pack);
    return pack;
  }
#pragma unroll
  for (int e = 0; e < Pack<T>::kCount; ++e) {
    pack.element[e] = T{};
    if (position + e >= 0 && position + e < span.extent) pack.element[e] = address[e];
  }
  return pack;
}

template <class T>
BRIDGE_DEVICE void store_pack(T* address, int64_t position, const Span& span,
                              const Pack<T>& pack) {
  if (span.is_whole(position)) {
    Vector16 words;
    memcpy(&words, &pack, sizeof words);
    store16(address, words);
    return;
  }
#pragma unroll
  for (int e = 0; e < Pack<T>::kCount; ++e) {
    if (position + e >= 0 && position + e < span.extent) address[e] = pack.element[e];
  }
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
