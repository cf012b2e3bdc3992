// softmax and its derivatives on runs of rows, compiled once for each instruction set into a
// namespace of its own. Everything but the table is internal to this file, and nothing of the
// standard library is used (see bias_gelu_kernel.cpp).
#include "ops/softmax_kernel.h"

#include "cpu/tile.h"
#include "math/softmax.h"
#include "ops/row_sum.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class T>
struct PrecisionOf {
  using type = math::Half;
};
template <>
struct PrecisionOf<float> {
  using type = math::Single;
};
template <>
struct PrecisionOf<double> {
  using type = math::Double;
};
template <class T>
using precision_of = typename PrecisionOf<T>::type;

template <class Real>
inline __attribute__((always_inline)) const math::SoftmaxScale<Real>& scale_of(
    const SoftmaxRun& run) {
  if constexpr (sizeof(Real) == sizeof(double))
    return run.scale_double;
  else
    return run.scale;
}

constexpr float kInfinity = __builtin_inff();

inline int64_t clamp_visible(const Run& run, int64_t row) {
  const int64_t visible = run.visible + row * run.visible_step;
  return visible < 0 ? 0 : smaller(visible, run.cols);
}

template <class T>
inline void zero(T* to, int64_t count) {
  if (count > 0) memset(to, 0, static_cast<size_t>(count) * sizeof(T));
}

// Keys of columns [0, count), -infinity where mask (null: none) is set; padded with -infinity to a
// whole step. Returns the largest of them and `largest`.
template <class T, class Real>
Real find_keys(const T* x, const uint8_t* mask, int64_t count,
               const math::SoftmaxScale<Real>& scale, Real* key, Real largest) {
  constexpr int64_t kLanes = 64;
  load_run_of<T>(x, key, count);
  if (mask == nullptr) {
    for (int64_t i = 0; i < count; ++i) key[i] = math::softmax_key(key[i], scale);
  } else {
    for (int64_t i = 0; i < count; ++i)
      key[i] = mask[i] != 0 ? Real(-kInfinity) : math::softmax_key(key[i], scale);
  }
  fill(key + count, round_up(count) - count, Real(-kInfinity));
  Real lane[kLanes];
  fill(lane, kLanes, Real(-kInfinity));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) lane[l] = math::softmax_larger(key[i + l], lane[l]);
  for (; i < count; ++i) largest = math::softmax_larger(key[i], largest);
  for (int64_t l = 0; l < kLanes; ++l) largest = math::softmax_larger(lane[l], largest);
  return largest;
}

// Powers in the place of keys, a whole number of steps.
template <class Precision, class Real>
void find_powers(Real* key, int64_t count, Real shift, const math::SoftmaxScale<Real>& given) {
  const math::SoftmaxScale<Real> scale = given;
  if (count % kStep != 0) __builtin_unreachable();
  for (int64_t i = 0; i < count; ++i) key[i] = math::softmax_power<Precision>(key[i], shift, scale);
}

template <class T, class Real>
void write_row(T* output, Real* power, const uint8_t* mask, int64_t count, Real inverse) {
  if (inverse != inverse && mask != nullptr) {
    for (int64_t i = 0; i < count; ++i)
      output[i] = math::round_to<T>(mask[i] != 0 ? Real(0) : inverse);
    return;
  }
  for (int64_t i = 0; i < count; ++i) power[i] = power[i] * inverse;
  store_run_of<T>(output, power, count);
}

// A row whose powers fit into the buffer.
template <class T>
void buffered_row(const SoftmaxRun& run, const T* x, const uint8_t* mask, T* output,
                  int64_t visible) {
  using Precision = precision_of<T>;
  using Real = typename Precision::real;
  const math::SoftmaxScale<Real>& scale = scale_of<Real>(run);
  Real* const buffer = static_cast<Real*>(run.buffer);
  const Real largest = find_keys(x, mask, visible, scale, buffer, Real(-kInfinity));
  find_powers<Precision>(buffer, round_up(visible), math::softmax_shift(largest), scale);
  ChunkTree<Real> tree;
  for (int64_t col = 0; col < visible; col += kSumChunk)
    tree.add(sum_chunk(buffer + col, smaller(kSumChunk, visible - col)));
  write_row(output, buffer, mask, visible, math::softmax_inverse(tree.end()));
}

// A longer one: x is read three times, and its powers are computed twice.
template <class T>
void long_row(const SoftmaxRun& run, const T* x, const uint8_t* mask, T* output, int64_t visible) {
  using Precision = precision_of<T>;
  using Real = typename Precision::real;
  const math::SoftmaxScale<Real>& scale = scale_of<Real>(run);
  Real* const buffer = static_cast<Real*>(run.buffer);
  auto mask_at = [&](int64_t col) { return mask == nullptr ? nullptr : mask + col; };
  Real largest = Real(-kInfinity);
  for (int64_t col = 0; col < visible; col += kSumChunk)
    largest =
        find_keys(x + col, mask_at(col), smaller(kSumChunk, visible - col), scale, buffer, largest);
  const Real shift = math::softmax_shift(largest);
  ChunkTree<Real> tree;
  auto chunk_powers = [&](int64_t col) {
    const int64_t count = smaller(kSumChunk, visible - col);
    find_keys(x + col, mask_at(col), count, scale, buffer, largest);
    find_powers<Precision>(buffer, round_up(count), shift, scale);
    return count;
  };
  for (int64_t col = 0; col < visible; col += kSumChunk) {
    const int64_t count = chunk_powers(col);
    tree.add(sum_chunk(buffer, count));
  }
  const Real inverse = math::softmax_inverse(tree.end());
  for (int64_t col = 0; col < visible; col += kSumChunk) {
    const int64_t count = chunk_powers(col);
    write_row(output + col, buffer, mask_at(col), count, inverse);
  }
}

template <class T>
void softmax(const SoftmaxRun& run) {
  for (int64_t row = 0; row < run.rows; ++row) {
    const T* const x = reinterpret_cast<const T*>(run.x.data + row * run.x.row_bytes);
    T* const output = reinterpret_cast<T*>(run.output.data + row * run.output.row_bytes);
    const uint8_t* mask =
        run.mask.data == nullptr
            ? nullptr
            : reinterpret_cast<const uint8_t*>(run.mask.data + row * run.mask.row_bytes);
    int64_t visible = clamp_visible(run, row);
    if (mask != nullptr && run.mask_is_row) {
      if (*mask != 0) visible = 0;
      mask = nullptr;
    }
    if (visible > run.buffered_cols)
      long_row(run, x, mask, output, visible);
    else if (visible > 0)
      buffered_row(run, x, mask, output, visible);
    zero(output + visible, run.cols - visible);
  }
}

// ---- Derivatives ----

template <class T, class Real, class Term>
Real row_dot(int64_t visible, const Term& term) {
  alignas(64) Real terms[kSumChunk];
  ChunkTree<Real> tree;
  for (int64_t col = 0; col < visible; col += kSumChunk) {
    const int64_t count = smaller(kSumChunk, visible - col);
    for (int64_t i = 0; i < count; ++i) terms[i] = term(col + i);
    fill(terms + count, round_up(count) - count, Real(-0.0));
    tree.add(sum_chunk(terms, count));
  }
  return tree.end();
}

template <class T>
void jacobian(const SoftmaxDerivativeRun& run) {
  using Real = real_of<T>;
  const Real scale = math::softmax_derivative_scale<Real>(run.scale);
  for (int64_t row = 0; row < run.rows; ++row) {
    const T* const u = reinterpret_cast<const T*>(run.u.data + row * run.u.row_bytes);
    const T* const v = reinterpret_cast<const T*>(run.v.data + row * run.v.row_bytes);
    T* const output = reinterpret_cast<T*>(run.output.data + row * run.output.row_bytes);
    const int64_t visible = clamp_visible(run, row);
    const Real dot = row_dot<T, Real>(visible, [&](int64_t i) {
      return math::softmax_jacobian_term(to_real<Real>(u[i]), to_real<Real>(v[i]));
    });
    BRIDGE_INDEPENDENT
    for (int64_t i = 0; i < visible; ++i)
      output[i] = math::round_to<T>(
          math::softmax_jacobian(to_real<Real>(u[i]), to_real<Real>(v[i]), dot, scale));
    zero(output + visible, run.cols - visible);
  }
}

template <class T>
void derivative(const SoftmaxDerivativeRun& run) {
  using Real = real_of<T>;
  const Real scale = math::softmax_derivative_scale<Real>(run.scale);
  for (int64_t row = 0; row < run.rows; ++row) {
    const T* const u = reinterpret_cast<const T*>(run.u.data + row * run.u.row_bytes);
    const T* const v = reinterpret_cast<const T*>(run.v.data + row * run.v.row_bytes);
    const T* const w =
        run.w.data == nullptr ? u : reinterpret_cast<const T*>(run.w.data + row * run.w.row_bytes);
    T* const output = reinterpret_cast<T*>(run.output.data + row * run.output.row_bytes);
    const int64_t visible = clamp_visible(run, row);
    auto dot = [&](int32_t term, const T* a, const T* b) {
      if ((run.terms & term) == 0) return Real(0);
      return row_dot<T, Real>(visible,
                              [&](int64_t i) { return to_real<Real>(a[i]) * to_real<Real>(b[i]); });
    };
    const Real dot_vw = dot(BRIDGE_SOFTMAX_U, v, w);
    const Real dot_uw = dot(BRIDGE_SOFTMAX_V, u, w);
    const Real dot_uv = dot(BRIDGE_SOFTMAX_W, u, v);
    const int32_t terms = run.terms;
    BRIDGE_INDEPENDENT
    for (int64_t i = 0; i < visible; ++i)
      output[i] = math::round_to<T>(
          math::softmax_derivative(terms, to_real<Real>(u[i]), to_real<Real>(v[i]),
                                   to_real<Real>(w[i]), dot_vw, dot_uw, dot_uv, scale));
    zero(output + visible, run.cols - visible);
  }
}

}  // namespace

constexpr SoftmaxKernels softmax_kernels = {
    {softmax<math::float16>, softmax<math::bfloat16>, softmax<float>, softmax<double>},
    {jacobian<math::float16>, jacobian<math::bfloat16>, jacobian<float>, jacobian<double>},
    {derivative<math::float16>, derivative<math::bfloat16>, derivative<float>, derivative<double>}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
