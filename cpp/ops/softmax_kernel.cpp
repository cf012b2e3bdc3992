// softmax and its derivatives on runs of rows, compiled once for each instruction set into a
// namespace of its own. Everything but the table is internal to this file, and nothing of the
// standard library is used (see bias_gelu_kernel.cpp).
#include "ops/softmax_kernel.h"

#include <type_traits>

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

// Rows up to this long are computed many at a time, each in one lane of the vectors.
constexpr int64_t kShortCols = 32;
constexpr int64_t kTileRows = kSumTileRows;
// Longer ones in blocks of so many elements.
constexpr int64_t kBlock = 64;

inline int64_t visible_cols(const Run& run, int64_t row) {
  const int64_t visible = run.visible + row * run.visible_step;
  return visible < 0 ? 0 : smaller(visible, run.cols);
}

template <class T>
inline __attribute__((always_inline)) T* row_of(const RunOperand& operand, int64_t row) {
  return reinterpret_cast<T*>(operand.data + row * operand.row_bytes);
}

template <class T>
inline void zero(T* to, int64_t count) {
  if (count > 0) memset(to, 0, static_cast<size_t>(count) * sizeof(T));
}

// The mask of a row, or null; where one byte hides the whole row, no column is visible.
struct RowMask {
  const uint8_t* mask;
  int64_t visible;
};

inline RowMask mask_of(const SoftmaxRun& run, int64_t row) {
  const int64_t visible = visible_cols(run, row);
  if (run.mask.data == nullptr) return {nullptr, visible};
  const uint8_t* const mask = row_of<const uint8_t>(run.mask, row);
  if (!run.mask_is_row) return {mask, visible};
  return {nullptr, *mask != 0 ? 0 : visible};
}

// ---- softmax of a row ----

// The keys of a block, and the largest of each of its lanes so far.
template <bool kMasked, class T, class Real>
inline __attribute__((always_inline)) void find_block_keys(const T* x, const uint8_t* mask,
                                                           Real half, Real* key, Real* largest) {
  const math::SoftmaxScale<Real> scale{half, 0, 0, 0};
  if constexpr (std::is_same_v<T, math::float16>) {
    load_run_of<T>(x, key, kBlock);
    BRIDGE_INDEPENDENT
    for (int64_t i = 0; i < kBlock; ++i) {
      key[i] = kMasked && mask[i] != 0 ? Real(-kInfinity) : math::softmax_key(key[i], scale);
      largest[i] = math::softmax_larger(key[i], largest[i]);
    }
  } else {
    BRIDGE_INDEPENDENT
    for (int64_t i = 0; i < kBlock; ++i) {
      const Real found = kMasked && mask[i] != 0 ? Real(-kInfinity)
                                                 : math::softmax_key(to_real<Real>(x[i]), scale);
      key[i] = found;
      largest[i] = math::softmax_larger(found, largest[i]);
    }
  }
}

template <class Real>
inline __attribute__((always_inline)) Real fold_largest(Real* lane) {
  for (int i = 0; i < 32; ++i) lane[i] = math::softmax_larger(lane[i], lane[i + 32]);
  for (int i = 0; i < 16; ++i) lane[i] = math::softmax_larger(lane[i], lane[i + 16]);
  for (int i = 0; i < 8; ++i) lane[i] = math::softmax_larger(lane[i], lane[i + 8]);
  for (int i = 0; i < 4; ++i) lane[i] = math::softmax_larger(lane[i], lane[i + 4]);
  return math::softmax_larger(math::softmax_larger(lane[0], lane[1]),
                              math::softmax_larger(lane[2], lane[3]));
}

// Keys of columns [0, count); padded with -infinity to a whole step. Returns the largest.
template <bool kMasked, class T, class Real>
Real find_keys(const T* x, const uint8_t* mask, int64_t count, Real half, Real* key) {
  alignas(64) Real largest[kBlock];
  fill(largest, kBlock, Real(-kInfinity));
  if (count >= kBlock) {
    for (int64_t i = 0; i + kBlock <= count; i += kBlock)
      find_block_keys<kMasked>(x + i, mask + i, half, key + i, largest);
    // The last columns together with some that have been seen: nothing changes in those.
    if (count % kBlock != 0) {
      const int64_t i = count - kBlock;
      find_block_keys<kMasked>(x + i, mask + i, half, key + i, largest);
    }
  } else {
    alignas(64) T padded_x[kBlock] = {};
    alignas(64) uint8_t padded_mask[kBlock];
    memset(padded_mask, 1, sizeof padded_mask);
    copy(padded_x, x, count);
    if constexpr (kMasked)
      copy(padded_mask, mask, count);
    else
      memset(padded_mask, 0, static_cast<size_t>(count));
    find_block_keys<true>(padded_x, padded_mask, half, key, largest);
  }
  fill(key + count, round_up(count) - count, Real(-kInfinity));
  return fold_largest(largest);
}

template <class T, class Real>
inline Real find_keys(const T* x, const uint8_t* mask, int64_t count, Real half, Real* key) {
  return mask == nullptr ? find_keys<false>(x, mask, count, half, key)
                         : find_keys<true>(x, mask, count, half, key);
}

// What sum_chunk asks for: powers in the place of keys.
template <class Precision>
struct Powers {
  using Real = typename Precision::real;
  Real* key;
  Real shift;
  math::SoftmaxScale<Real> scale;

  inline __attribute__((always_inline)) Real term(int64_t i) const {
    const Real power = math::softmax_power<Precision>(key[i], shift, scale);
    key[i] = power;
    return power;
  }
};

// The inverse is not NaN, and so nothing is.
template <class T, class Real>
inline __attribute__((always_inline)) void write_block(const Real* power,
                                                       math::SoftmaxInverse<Real> inverse,
                                                       T* output, int64_t count) {
  using Precision = precision_of<T>;
  if constexpr (std::is_same_v<T, math::float16>) {
    alignas(64) Real value[kBlock];
    for (int64_t i = 0; i < count; ++i)
      value[i] = math::softmax_value<Precision>(power[i], inverse);
    store_run_of<T>(output, value, count);
  } else {
    BRIDGE_INDEPENDENT
    for (int64_t i = 0; i < count; ++i)
      output[i] = math::round_number_to<T>(math::softmax_value<Precision>(power[i], inverse));
  }
}

template <class T, class Real>
void write_row(T* output, const Real* power, const uint8_t* mask, int64_t count,
               const math::SoftmaxInverse<Real>& inverse) {
  if (inverse.high != inverse.high) {
    for (int64_t i = 0; i < count; ++i)
      output[i] = math::round_to<T>(mask != nullptr && mask[i] != 0 ? Real(0) : inverse.high);
  } else if (count >= kBlock) {
    for (int64_t i = 0; i + kBlock <= count; i += kBlock)
      write_block(power + i, inverse, output + i, kBlock);
    if (count % kBlock != 0)
      write_block(power + count - kBlock, inverse, output + count - kBlock, kBlock);
  } else {
    alignas(64) T padded[kBlock];
    write_block(power, inverse, padded, round_up(count));
    copy(output, padded, count);
  }
}

// A row whose powers fit into the buffer.
template <class T>
void buffered_row(const SoftmaxRun& run, const T* x, const uint8_t* mask, T* output,
                  int64_t visible) {
  using Precision = precision_of<T>;
  using Real = typename Precision::real;
  const math::SoftmaxScale<Real>& scale = scale_of<Real>(run);
  Real* const buffer = static_cast<Real*>(run.buffer);
  const Real shift = math::softmax_shift(find_keys(x, mask, visible, scale.half, buffer));
  // Whole steps: the padding has the power 0.
  const Real total = sum_row<Real>(
      round_up(visible), [&](int64_t col) { return Powers<Precision>{buffer + col, shift, scale}; },
      [&] { return Powers<Precision>{buffer, shift, scale}; });
  write_row(output, buffer, mask, visible, math::softmax_inverse(total));
}

// A longer one: x is read three times, and its powers are computed twice.
template <class T>
void long_row(const SoftmaxRun& run, const T* x, const uint8_t* mask, T* output, int64_t visible) {
  using Precision = precision_of<T>;
  using Real = typename Precision::real;
  const math::SoftmaxScale<Real>& scale = scale_of<Real>(run);
  Real* const buffer = static_cast<Real*>(run.buffer);
  auto mask_at = [&](int64_t col) { return mask == nullptr ? nullptr : mask + col; };
  auto chunk_keys = [&](int64_t col) {
    return find_keys(x + col, mask_at(col), smaller(kSumChunk, visible - col), scale.half, buffer);
  };
  Real largest = Real(-kInfinity);
  for (int64_t col = 0; col < visible; col += kSumChunk)
    largest = math::softmax_larger(chunk_keys(col), largest);
  const Powers<Precision> powers{buffer, math::softmax_shift(largest), scale};
  const Real total = sum_row<Real>(
      round_up(visible),
      [&](int64_t col) {
        chunk_keys(col);
        return powers;
      },
      [&] { return powers; });
  const math::SoftmaxInverse<Real> inverse = math::softmax_inverse(total);
  for (int64_t col = 0; col < visible; col += kSumChunk) {
    const int64_t count = smaller(kSumChunk, visible - col);
    chunk_keys(col);
    const int64_t padded = round_up(count);
    BRIDGE_INDEPENDENT
    for (int64_t i = 0; i < padded; ++i) powers.term(i);
    write_row(output + col, buffer, mask_at(col), count, inverse);
  }
}

// ---- softmax of short rows ----

// Element `col` of row `row` stands at col * kTileRows + row: the steps of a row are those of
// vectors, and nothing is done across their lanes.
template <class T>
void short_rows(const SoftmaxRun& run) {
  using Precision = precision_of<T>;
  using Real = typename Precision::real;
  const math::SoftmaxScale<Real> scale = scale_of<Real>(run);
  alignas(64) Real tile[kShortCols * kTileRows];
  alignas(64) Real sums[kShortCols * kTileRows];
  alignas(64) Real shift[kTileRows];
  alignas(64) Real high[kTileRows], low[kTileRows];
  const int64_t cols = run.cols;
  for (int64_t top = 0; top < run.rows; top += kTileRows) {
    const int64_t rows = smaller(kTileRows, run.rows - top);
    for (int64_t r = 0; r < kTileRows; ++r) shift[r] = Real(-kInfinity);
    if (rows < kTileRows) fill(tile, cols * kTileRows, Real(-kInfinity));
    for (int64_t r = 0; r < rows; ++r) {
      const T* const x = row_of<const T>(run.x, top + r);
      const RowMask row = mask_of(run, top + r);
      int64_t i = 0;
      if (row.mask == nullptr)
        for (; i < row.visible; ++i)
          tile[i * kTileRows + r] = math::softmax_key(to_real<Real>(x[i]), scale);
      else
        for (; i < row.visible; ++i)
          tile[i * kTileRows + r] =
              row.mask[i] != 0 ? Real(-kInfinity) : math::softmax_key(to_real<Real>(x[i]), scale);
      for (; i < cols; ++i) tile[i * kTileRows + r] = Real(-kInfinity);
    }
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t r = 0; r < kTileRows; ++r)
        shift[r] = math::softmax_larger(tile[i * kTileRows + r], shift[r]);
    for (int64_t r = 0; r < kTileRows; ++r) shift[r] = math::softmax_shift(shift[r]);
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t r = 0; r < kTileRows; ++r) {
        const Real power = math::softmax_power<Precision>(tile[i * kTileRows + r], shift[r], scale);
        tile[i * kTileRows + r] = power;
        sums[i * kTileRows + r] = power;
      }
    fold_tile(sums, cols);
    for (int64_t r = 0; r < kTileRows; ++r) {
      const math::SoftmaxInverse<Real> inverse = math::softmax_inverse(sums[r]);
      high[r] = inverse.high, low[r] = inverse.low;
    }
    bool all_numbers = true;
    for (int64_t r = 0; r < rows; ++r) all_numbers = all_numbers && high[r] == high[r];
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t r = 0; r < kTileRows; ++r)
        tile[i * kTileRows + r] = math::softmax_value<Precision>(
            tile[i * kTileRows + r], math::SoftmaxInverse<Real>{high[r], low[r]});
    for (int64_t r = 0; r < rows; ++r) {
      T* const output = row_of<T>(run.output, top + r);
      if (all_numbers || high[r] == high[r]) {
        for (int64_t i = 0; i < cols; ++i)
          output[i] = math::round_number_to<T>(tile[i * kTileRows + r]);
        continue;
      }
      const RowMask row = mask_of(run, top + r);
      for (int64_t i = 0; i < cols; ++i)
        output[i] = math::round_to<T>(
            i >= row.visible || (row.mask != nullptr && row.mask[i] != 0) ? Real(0) : high[r]);
    }
  }
}

template <class T>
void softmax(const SoftmaxRun& run) {
  if (run.cols <= kShortCols) return short_rows<T>(run);
  for (int64_t i = 0; i < run.rows; ++i) {
    const T* const x = row_of<const T>(run.x, i);
    T* const output = row_of<T>(run.output, i);
    const RowMask row = mask_of(run, i);
    if (row.visible > run.buffered_cols)
      long_row(run, x, row.mask, output, row.visible);
    else if (row.visible > 0)
      buffered_row(run, x, row.mask, output, row.visible);
    zero(output + row.visible, run.cols - row.visible);
  }
}

// ---- Derivatives ----

template <class Real>
struct Terms {
  const Real* of;
  inline __attribute__((always_inline)) Real term(int64_t i) const { return of[i]; }
};

// u and v of the last columns of a row, fewer than a step, padded with 0, which has no part in
// anything.
template <class T>
struct Tail {
  alignas(64) T u[kStep];
  alignas(64) T v[kStep];
  alignas(64) T output[kStep];

  void load(const T* from_u, const T* from_v, int64_t count) {
    memset(u, 0, sizeof u);
    memset(v, 0, sizeof v);
    copy(u, from_u, count);
    copy(v, from_v, count);
  }
};

template <class T>
struct Products {
  using Real = real_of<T>;
  const T* u;
  const T* v;

  inline __attribute__((always_inline)) Real term(int64_t i) const {
    return math::softmax_jacobian_term(to_real<Real>(u[i]), to_real<Real>(v[i]));
  }
};

// A whole number of steps. kNumbers: nothing in the row is NaN.
template <bool kNumbers, class T, class Real>
inline __attribute__((always_inline)) void write_jacobian(const T* u, const T* v, T* output,
                                                          int64_t count, Real dot, Real scale) {
  if (count % kStep != 0) __builtin_unreachable();
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const Real value = math::softmax_jacobian(to_real<Real>(u[i]), to_real<Real>(v[i]), dot, scale);
    output[i] = kNumbers ? math::round_number_to<T>(value) : math::round_to<T>(value);
  }
}

template <class T>
void jacobian_row(const T* u, const T* v, T* output, int64_t visible, real_of<T> scale) {
  using Real = real_of<T>;
  const int64_t body = visible / kStep * kStep, rest = visible - body;
  Tail<T> tail;
  if (rest != 0) tail.load(u + body, v + body, rest);
  const Real dot = sum_row<Real>(
      visible, [&](int64_t col) { return Products<T>{u + col, v + col}; },
      [&] { return Products<T>{tail.u, tail.v}; });
  auto write = [&](auto numbers) {
    constexpr bool kNumbers = decltype(numbers)::value;
    write_jacobian<kNumbers>(u, v, output, body, dot, scale);
    if (rest == 0) return;
    write_jacobian<kNumbers>(tail.u, tail.v, tail.output, kStep, dot, scale);
    copy(output + body, tail.output, rest);
  };
  // With a finite sum of products and another scale than 0, no result is NaN.
  if (dot - dot == 0 && scale != 0)
    write(std::true_type{});
  else
    write(std::false_type{});
}

// float16 goes through chunks in float, for the processor's own conversions.
template <>
void jacobian_row<math::float16>(const math::float16* u, const math::float16* v,
                                 math::float16* output, int64_t visible, float scale) {
  alignas(64) float u_chunk[kSumChunk], v_chunk[kSumChunk];
  auto load = [&](int64_t col) {
    const int64_t count = smaller(kSumChunk, visible - col), padded = round_up(count);
    load_run_of<math::float16>(u + col, u_chunk, count);
    load_run_of<math::float16>(v + col, v_chunk, count);
    fill(u_chunk + count, padded - count, 0.0f);
    fill(v_chunk + count, padded - count, 0.0f);
    return Products<float>{u_chunk, v_chunk};
  };
  const float dot =
      sum_row<float>(round_up(visible), load, [&] { return Products<float>{u_chunk, v_chunk}; });
  for (int64_t col = 0; col < visible; col += kSumChunk) {
    const int64_t count = smaller(kSumChunk, visible - col);
    if (visible > kSumChunk) load(col);
    write_jacobian<true>(u_chunk, v_chunk, u_chunk, round_up(count), dot, scale);
    store_run_of<math::float16>(output + col, u_chunk, count);
  }
}

template <class T>
void short_jacobian_rows(const SoftmaxDerivativeRun& run) {
  using Real = real_of<T>;
  const Real scale = math::softmax_derivative_scale<Real>(run.scale);
  alignas(64) Real u_tile[kShortCols * kTileRows];
  alignas(64) Real v_tile[kShortCols * kTileRows];
  alignas(64) Real sums[kShortCols * kTileRows];
  const int64_t cols = run.cols;
  for (int64_t top = 0; top < run.rows; top += kTileRows) {
    const int64_t rows = smaller(kTileRows, run.rows - top);
    if (rows < kTileRows || run.visible_step != 0) fill(u_tile, cols * kTileRows, Real(0));
    if (rows < kTileRows || run.visible_step != 0) fill(v_tile, cols * kTileRows, Real(0));
    for (int64_t r = 0; r < rows; ++r) {
      const T* const u = row_of<const T>(run.u, top + r);
      const T* const v = row_of<const T>(run.v, top + r);
      const int64_t visible = visible_cols(run, top + r);
      for (int64_t i = 0; i < visible; ++i) {
        u_tile[i * kTileRows + r] = to_real<Real>(u[i]);
        v_tile[i * kTileRows + r] = to_real<Real>(v[i]);
      }
    }
    const int64_t count = cols * kTileRows;
    for (int64_t i = 0; i < count; ++i) sums[i] = math::softmax_jacobian_term(u_tile[i], v_tile[i]);
    fold_tile(sums, cols);
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t r = 0; r < kTileRows; ++r)
        u_tile[i * kTileRows + r] = math::softmax_jacobian(
            u_tile[i * kTileRows + r], v_tile[i * kTileRows + r], sums[r], scale);
    for (int64_t r = 0; r < rows; ++r) {
      T* const output = row_of<T>(run.output, top + r);
      for (int64_t i = 0; i < cols; ++i) output[i] = math::round_to<T>(u_tile[i * kTileRows + r]);
    }
  }
}

template <class T>
void jacobian(const SoftmaxDerivativeRun& run) {
  if (run.cols <= kShortCols) return short_jacobian_rows<T>(run);
  using Real = real_of<T>;
  const Real scale = math::softmax_derivative_scale<Real>(run.scale);
  for (int64_t row = 0; row < run.rows; ++row) {
    T* const output = row_of<T>(run.output, row);
    const int64_t visible = visible_cols(run, row);
    if (visible > 0)
      jacobian_row(row_of<const T>(run.u, row), row_of<const T>(run.v, row), output, visible,
                   scale);
    zero(output + visible, run.cols - visible);
  }
}

// A chunk of a row of each operand in the arithmetic type.
template <class T>
struct Chunk {
  using Real = real_of<T>;
  alignas(64) Real u[kSumChunk], v[kSumChunk], w[kSumChunk], sum[kSumChunk];
  int64_t count;

  void load(const T* from_u, const T* from_v, const T* from_w, int64_t columns) {
    count = columns;
    load_run_of<T>(from_u, u, count);
    load_run_of<T>(from_v, v, count);
    load_run_of<T>(from_w, w, count);
  }
  Real dot(const Real* a, const Real* b) {
    for (int64_t i = 0; i < count; ++i) sum[i] = a[i] * b[i];
    fill(sum + count, round_up(count) - count, Real(-0.0));
    return sum_chunk<Real>(Terms<Real>{sum}, Terms<Real>{sum}, round_up(count));
  }
  // sum - factor * dot, or where there is no sum yet -(factor * dot).
  void subtract(const Real* factor, Real dot, bool begun) {
    if (begun)
      for (int64_t i = 0; i < count; ++i) sum[i] = math::fma(-factor[i], dot, sum[i]);
    else
      for (int64_t i = 0; i < count; ++i) sum[i] = -(factor[i] * dot);
  }
};

template <class T>
void derivative(const SoftmaxDerivativeRun& run) {
  using Real = real_of<T>;
  const Real scale = math::softmax_derivative_scale<Real>(run.scale);
  const int32_t terms = run.terms;
  Chunk<T> chunk;
  for (int64_t row = 0; row < run.rows; ++row) {
    const T* const u = row_of<const T>(run.u, row);
    const T* const v = row_of<const T>(run.v, row);
    const T* const w = row_of<const T>(run.w, row);
    T* const output = row_of<T>(run.output, row);
    const int64_t visible = visible_cols(run, row);
    ChunkTree<Real> vw, uw, uv;
    for (int64_t col = 0; col < visible; col += kSumChunk) {
      chunk.load(u + col, v + col, w + col, smaller(kSumChunk, visible - col));
      if (terms & BRIDGE_SOFTMAX_U) vw.add(chunk.dot(chunk.v, chunk.w));
      if (terms & BRIDGE_SOFTMAX_V) uw.add(chunk.dot(chunk.u, chunk.w));
      if (terms & BRIDGE_SOFTMAX_W) uv.add(chunk.dot(chunk.u, chunk.v));
    }
    const Real dot_vw = vw.end(), dot_uw = uw.end(), dot_uv = uv.end();
    for (int64_t col = 0; col < visible; col += kSumChunk) {
      if (visible > kSumChunk)
        chunk.load(u + col, v + col, w + col, smaller(kSumChunk, visible - col));
      const int64_t count = chunk.count;
      bool begun = false;
      if (terms & BRIDGE_SOFTMAX_PRODUCT) {
        for (int64_t i = 0; i < count; ++i) chunk.sum[i] = chunk.u[i] * chunk.v[i];
        begun = true;
      }
      if (terms & BRIDGE_SOFTMAX_U) chunk.subtract(chunk.u, dot_vw, begun), begun = true;
      if (terms & BRIDGE_SOFTMAX_V) chunk.subtract(chunk.v, dot_uw, begun), begun = true;
      if (terms & BRIDGE_SOFTMAX_W) chunk.subtract(chunk.w, dot_uv, begun);
      for (int64_t i = 0; i < count; ++i) chunk.sum[i] = scale * chunk.sum[i];
      store_run_of<T>(output + col, chunk.sum, count);
    }
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
