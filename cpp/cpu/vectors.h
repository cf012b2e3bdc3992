// Vectors of the widest registers, with a fused multiply-add. Include this only in files that are
// compiled once for each instruction set.
#ifndef BRIDGE_CPU_VECTORS_H_
#define BRIDGE_CPU_VECTORS_H_

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "math/scalar.h"

#define BRIDGE_INLINE inline __attribute__((always_inline))
// Unrolls the next loop, whose bounds are constants: then its arrays are registers.
#if defined(__clang__)
#define BRIDGE_UNROLL _Pragma("unroll")
#else
#define BRIDGE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

using FloatVector = float __attribute__((vector_size(kVectorBytes)));
using DoubleVector = double __attribute__((vector_size(kVectorBytes)));

template <class Real>
struct VectorOf;
template <>
struct VectorOf<float> {
  using type = FloatVector;
  using index = int32_t __attribute__((vector_size(kVectorBytes)));
};
template <>
struct VectorOf<double> {
  using type = DoubleVector;
  using index = int64_t __attribute__((vector_size(kVectorBytes)));
};
template <class Real>
using Vector = typename VectorOf<Real>::type;

template <class Real>
using Index = typename VectorOf<Real>::index;  // a number of an element in each lane

template <class Real>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Real));

template <class Real>
BRIDGE_INLINE Vector<Real> load(const Real* from) {
  Vector<Real> vector;
  memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class Real>
BRIDGE_INLINE void store(Real* to, Vector<Real> vector) {
  memcpy(to, &vector, sizeof vector);
}

template <class Real>
BRIDGE_INLINE Vector<Real> all_of(Real value) {
  return value - Vector<Real>{};  // x - 0 is x, also for -0
}

BRIDGE_INLINE FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
#if defined(__AVX512F__)
  return FloatVector(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__AVX2__)
  return FloatVector(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif defined(__aarch64__)
  return FloatVector(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#else
  for (int i = 0; i < kLanes<float>; ++i) c[i] = math::fma(a[i], b[i], c[i]);
  return c;
#endif
}

BRIDGE_INLINE DoubleVector fma(DoubleVector a, DoubleVector b, DoubleVector c) {
#if defined(__AVX512F__)
  return DoubleVector(_mm512_fmadd_pd(__m512d(a), __m512d(b), __m512d(c)));
#elif defined(__AVX2__)
  return DoubleVector(_mm256_fmadd_pd(__m256d(a), __m256d(b), __m256d(c)));
#elif defined(__aarch64__)
  return DoubleVector(vfmaq_f64(float64x2_t(c), float64x2_t(a), float64x2_t(b)));
#else
  for (int i = 0; i < kLanes<double>; ++i) c[i] = math::fma(a[i], b[i], c[i]);
  return c;
#endif
}

// Returns the first (second) halves of two vectors, element by element in turn.
template <bool kSecond, class Real>
BRIDGE_INLINE Vector<Real> interleaved(Vector<Real> a, Vector<Real> b) {
  constexpr int kCount = kLanes<Real>;
  Index<Real> at;
  for (int i = 0; i < kCount; ++i) at[i] = i / 2 + (kSecond ? kCount / 2 : 0) + i % 2 * kCount;
#if defined(__clang__)
  Vector<Real> mixed;
  for (int i = 0; i < kCount; ++i) mixed[i] = at[i] < kCount ? a[at[i]] : b[at[i] - kCount];
  return mixed;
#else
  return __builtin_shuffle(a, b, at);
#endif
}

// Transposes a square of vectors: each round interleaves vector i with the one half the square
// away.
template <class Real>
BRIDGE_INLINE void transpose(Vector<Real> (&rows)[kLanes<Real>]) {
  constexpr int kCount = kLanes<Real>;
  BRIDGE_UNROLL
  for (int round = 1; round < kCount; round *= 2) {
    Vector<Real> mixed[kCount];
    BRIDGE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      mixed[2 * i] = interleaved<false, Real>(rows[i], rows[i + kCount / 2]);
      mixed[2 * i + 1] = interleaved<true, Real>(rows[i], rows[i + kCount / 2]);
    }
    BRIDGE_UNROLL
    for (int i = 0; i < kCount; ++i) rows[i] = mixed[i];
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_CPU_VECTORS_H_
