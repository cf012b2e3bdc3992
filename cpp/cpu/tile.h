// Transfers runs of elements between memory of any dtype and tiles of float or double. Include this
// only in files that are compiled once for each instruction set; everything has internal linkage.
// Tiles are padded to a multiple of kStep elements, so that loops over them have no remainder.
#ifndef BRIDGE_CPU_TILE_H_
#define BRIDGE_CPU_TILE_H_

#ifndef BRIDGE_ISA_NAMESPACE
#error "cpu/tile.h belongs to files compiled for one instruction set"
#endif

#include <bridge/bridge.h>
#include <stdint.h>
#include <string.h>

#if defined(__F16C__) || defined(__AVX512BW__)
#include <immintrin.h>
#endif

#include "math/convert.h"
#include "math/eight_bits.h"
#include "math/precision.h"

// States that iterations of the next loop share memory only if operands are the same memory,
// element for element. The compiler then omits a run-time check for overlap, which in-place calls
// would fail.
#if defined(__clang__)
#define BRIDGE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define BRIDGE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// The number of 16-bit elements in the widest vector.
constexpr int64_t kStep = 32;

inline int64_t round_up(int64_t count) { return (count + kStep - 1) / kStep * kStep; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The arithmetic type of a call whose operands all have element type T.
template <class T>
using real_of = typename math::precision_of<T>::real;

template <class Real, class T>
inline __attribute__((always_inline)) Real to_real(T value) {
  if constexpr (sizeof(T) == 2 || (sizeof(T) == 1 && !std::is_same_v<T, uint8_t>))
    return static_cast<Real>(math::to_float(value));
  else
    return static_cast<Real>(value);
}

template <class Real>
inline void fill(Real* tile, int64_t count, Real value) {
  for (int64_t i = 0; i < count; ++i) tile[i] = value;
}

template <class T>
inline void copy(T* to, const T* from, int64_t count) {
  memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

// Copies from kBytes to 2 kBytes bytes, as the first and the last kBytes.
template <int64_t kBytes>
inline __attribute__((always_inline)) void copy_ends(char* to, const char* from, int64_t bytes) {
  char first[kBytes], last[kBytes];
  memcpy(first, from, kBytes);
  memcpy(last, from + bytes - kBytes, kBytes);
  memcpy(to, first, kBytes);
  memcpy(to + bytes - kBytes, last, kBytes);
}

// load_few copies `count` elements, at most kCount, into a buffer of kCount and fills the rest with
// zeros; store_few writes `count` elements of such a buffer. They call no function, which would
// take longer than the rest of a short row. They use masks where there are any, because data stored
// in pieces cannot be forwarded to a load of the whole.
#if defined(__AVX512BW__)
inline __mmask64 mask_of_first(int64_t bytes) {
  return bytes <= 0 ? 0 : bytes >= 64 ? ~uint64_t{0} : ~uint64_t{0} >> (64 - bytes);
}
template <int64_t kCount, class T>
inline __attribute__((always_inline)) void load_few(const T* from, T* to, int64_t count) {
  constexpr int64_t size = sizeof(T), per_line = 64 / size;
  for (int64_t i = 0; i < kCount; i += per_line)
    _mm512_storeu_si512(to + i,
                        _mm512_maskz_loadu_epi8(mask_of_first((count - i) * size), from + i));
}
template <int64_t kCount, class T>
inline __attribute__((always_inline)) void store_few(T* to, const T* from, int64_t count) {
  constexpr int64_t size = sizeof(T), per_line = 64 / size;
  for (int64_t i = 0; i < kCount; i += per_line)
    _mm512_mask_storeu_epi8(to + i, mask_of_first((count - i) * size),
                            _mm512_loadu_si512(from + i));
}
#else
template <int64_t kCount, class T>
inline __attribute__((always_inline)) void store_few(T* to, const T* from, int64_t count) {
  constexpr int64_t size = sizeof(T), most = kCount * size;
  const int64_t bytes = count * size;
  char* const target = reinterpret_cast<char*>(to);
  const char* const source = reinterpret_cast<const char*>(from);
  if (most >= 128 && bytes >= 128) return copy_ends<128>(target, source, bytes);
  if (most >= 64 && bytes >= 64) return copy_ends<64>(target, source, bytes);
  if (most >= 32 && bytes >= 32) return copy_ends<32>(target, source, bytes);
  if (bytes >= 16) return copy_ends<16>(target, source, bytes);
  if (bytes >= 8) return copy_ends<8>(target, source, bytes);
  if (size <= 4 && bytes >= 4) return copy_ends<4>(target, source, bytes);
  if (size <= 2 && bytes >= 2) return copy_ends<2>(target, source, bytes);
  if (size == 1 && bytes == 1) *target = *source;
}
template <int64_t kCount, class T>
inline __attribute__((always_inline)) void load_few(const T* from, T* to, int64_t count) {
  memset(to, 0, kCount * sizeof(T));
  store_few<kCount>(to, from, count);
}
#endif

template <class Real>
inline void add_to(Real* sum, const Real* term, int64_t count) {
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) sum[i] = sum[i] + term[i];
}

template <class T, class Real>
void load_run_of(const void* from, Real* tile, int64_t count) {
  const T* const elements = static_cast<const T*>(from);
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) tile[i] = to_real<Real>(elements[i]);
}

template <class T, class Real>
void store_run_of(void* to, const Real* tile, int64_t count) {
  T* const elements = static_cast<T*>(to);
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) elements[i] = math::round_to<T>(tile[i]);
}

#if defined(__F16C__)

// float16 by the processor's own conversions: widening is exact, narrowing rounds to nearest, and
// both keep denormals regardless of MXCSR. A NaN is made canonical before it is narrowed. The
// widest vectors are used, because data stored in halves cannot be forwarded to a load of the
// whole.
#if defined(__AVX512F__)
constexpr int64_t kF16Lanes = 16;
// A mask of all lanes: GCC warns of uninitialised lanes in its header's functions without a mask.
constexpr __mmask16 kAllLanes = 0xFFFF;
inline void widen_lanes(const math::float16* from, float* to) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  _mm512_storeu_ps(to, _mm512_maskz_cvtph_ps(kAllLanes, narrow));
}
inline void narrow_lanes(const float* from, math::float16* to) {
  const __m512 nan = _mm512_castsi512_ps(
      _mm512_set1_epi32(static_cast<int32_t>(math::Format<float>::canonical_nan)));
  const __m512 value = _mm512_loadu_ps(from);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512 canonical = _mm512_mask_mov_ps(value, is_nan, nan);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtps_ph(kAllLanes, canonical, _MM_FROUND_TO_NEAREST_INT));
}
#else
constexpr int64_t kF16Lanes = 8;
inline void widen_lanes(const math::float16* from, float* to) {
  _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline void narrow_lanes(const float* from, math::float16* to) {
  const __m256 nan = _mm256_castsi256_ps(
      _mm256_set1_epi32(static_cast<int32_t>(math::Format<float>::canonical_nan)));
  const __m256 value = _mm256_loadu_ps(from);
  const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm256_cvtps_ph(_mm256_blendv_ps(value, nan, is_nan), _MM_FROUND_TO_NEAREST_INT));
}
#endif

template <>
inline void load_run_of<math::float16, float>(const void* from, float* tile, int64_t count) {
  const math::float16* const elements = static_cast<const math::float16*>(from);
  const int64_t whole = count / kF16Lanes * kF16Lanes;
  for (int64_t i = 0; i < whole; i += kF16Lanes) widen_lanes(elements + i, tile + i);
  if (whole == count) return;
  alignas(64) math::float16 narrow[kStep];
  alignas(64) float wide[kF16Lanes];
  load_few<kStep>(elements + whole, narrow, count - whole);
  widen_lanes(narrow, wide);
  store_few<kF16Lanes>(tile + whole, wide, count - whole);
}

// Always inline: for a block of known length, only its instructions remain.
template <>
inline __attribute__((always_inline)) void store_run_of<math::float16, float>(void* to,
                                                                              const float* tile,
                                                                              int64_t count) {
  math::float16* const elements = static_cast<math::float16*>(to);
  const int64_t whole = count / kF16Lanes * kF16Lanes;
  for (int64_t i = 0; i < whole; i += kF16Lanes) narrow_lanes(tile + i, elements + i);
  if (whole == count) return;
  alignas(64) float wide[kF16Lanes];
  alignas(64) math::float16 narrow[kStep] = {};
  load_few<kF16Lanes>(tile + whole, wide, count - whole);
  narrow_lanes(wide, narrow);
  store_few<kStep>(elements + whole, narrow, count - whole);
}

#endif

// Reads `count` elements of a dtype. A call with a float64 operand computes in double, so that
// float tiles never meet float64.
template <class Real>
void load_run(int32_t dtype, const void* from, Real* tile, int64_t count) {
  switch (dtype) {
    case BRIDGE_FLOAT16:
      return load_run_of<math::float16>(from, tile, count);
    case BRIDGE_BFLOAT16:
      return load_run_of<math::bfloat16>(from, tile, count);
    case BRIDGE_FLOAT32:
      return load_run_of<float>(from, tile, count);
    case BRIDGE_INT8:
      return load_run_of<int8_t>(from, tile, count);
    case BRIDGE_FLOAT8_E4M3FN:
      return load_run_of<math::float8_e4m3fn>(from, tile, count);
    case BRIDGE_FLOAT8_E5M2:
      return load_run_of<math::float8_e5m2>(from, tile, count);
    case BRIDGE_FLOAT8_E8M0FNU:
      return load_run_of<math::float8_e8m0fnu>(from, tile, count);
    default:
      if constexpr (sizeof(Real) == sizeof(double)) load_run_of<double>(from, tile, count);
  }
}

template <class Real>
void store_run(int32_t dtype, void* to, const Real* tile, int64_t count) {
  switch (dtype) {
    case BRIDGE_FLOAT16:
      return store_run_of<math::float16>(to, tile, count);
    case BRIDGE_BFLOAT16:
      return store_run_of<math::bfloat16>(to, tile, count);
    case BRIDGE_FLOAT32:
      return store_run_of<float>(to, tile, count);
    case BRIDGE_INT8:
      return store_run_of<int8_t>(to, tile, count);
    case BRIDGE_FLOAT8_E4M3FN:
      return store_run_of<math::float8_e4m3fn>(to, tile, count);
    case BRIDGE_FLOAT8_E5M2:
      return store_run_of<math::float8_e5m2>(to, tile, count);
    case BRIDGE_FLOAT8_E8M0FNU:
      return store_run_of<math::float8_e8m0fnu>(to, tile, count);
    default:
      if constexpr (sizeof(Real) == sizeof(double)) store_run_of<double>(to, tile, count);
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_CPU_TILE_H_
