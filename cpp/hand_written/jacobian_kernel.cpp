// The Jacobian of softmax on a run of rows. Compiled like softmax_kernel.cpp, once for each
// instruction set.
#include "hand_written/softmax_kernel.h"

#include <type_traits>

#include "cpu/tile.h"
#include "drivers/rows/row_sums.h"
#include "hand_written/run_rows.h"
#include "math/softmax.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

template <class Real>
struct Terms {
  const Real* of;
  inline __attribute__((always_inline)) Real term(int64_t i) const { return of[i]; }
};

// u and v in the last columns of a row, fewer than a step. The padding is 0: it adds nothing to the
// sum.
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

// `count` is a whole number of steps. kNumbers: no result is NaN.
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

// Returns <u, v> for a row. If it is longer than a quarter of a chunk, the products are written to
// a buffer first: the sum reads four places at a time, but memory is read faster from one end to
// the other.
template <class T, class Real = real_of<T>>
Real product_of(const T* u, const T* v, int64_t count, const Tail<T>& tail) {
  const Products<T> behind{tail.u, tail.v};
  if (count <= kSumQuarter) return sum_chunk<Real>(Products<T>{u, v}, behind, count);
  alignas(64) Real product[kSumChunk], last[kStep];
  if (count % kStep != 0) {
    for (int64_t i = 0; i < kStep; ++i) last[i] = behind.term(i);
  }
  return sum_row<Real>(
      count,
      [&](int64_t col) {
        const Products<T> of{u + col, v + col};
        const int64_t whole = smaller(kSumChunk, count - col) / kStep * kStep;
        BRIDGE_INDEPENDENT
        for (int64_t i = 0; i < whole; ++i) product[i] = of.term(i);
        return Terms<Real>{product};
      },
      [&] { return Terms<Real>{last}; });
}

template <class T>
void jacobian_row(const Run& run, const T* u, const T* v, T* output, int64_t visible,
                  real_of<T> scale) {
  using Real = real_of<T>;
  const int64_t body = visible / kStep * kStep, rest = visible - body;
  Tail<T> tail;
  if (rest != 0) tail.load(u + body, v + body, rest);
  const Real dot = product_of(u, v, visible, tail);
  auto write = [&](auto numbers) {
    constexpr bool kNumbers = decltype(numbers)::value;
    write_row(run, output, visible, run.cols, [&](T* to, int64_t begin, int64_t count) {
      const int64_t whole = count / kStep * kStep;
      write_jacobian<kNumbers>(u + begin, v + begin, to, whole, dot, scale);
      if (whole == count) return;
      write_jacobian<kNumbers>(tail.u, tail.v, tail.output, kStep, dot, scale);
      copy(to + whole, tail.output, rest);
    });
  };
  // A finite sum of products and a scale other than 0 exclude NaN.
  if (dot - dot == 0 && scale != 0)
    write(std::true_type{});
  else
    write(std::false_type{});
}

// Chunks of float16 are converted to float first, by instructions of the processor.
template <>
void jacobian_row<math::float16>(const Run& run, const math::float16* u, const math::float16* v,
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
    const int64_t cols = col + count == visible ? run.cols - col : count;
    write_row(run, output + col, count, cols, [&](math::float16* to, int64_t, int64_t) {
      store_run_of<math::float16>(to, u_chunk, count);
    });
  }
}

template <class T>
void short_jacobian_rows(const JacobianRun& run) {
  using Real = real_of<T>;
  const Real scale = math::softmax_derivative_scale<Real>(run.scale);
  alignas(64) Real u_tile[kShortCols * kTileRows];
  alignas(64) Real v_tile[kShortCols * kTileRows];
  Lanes<Real, kShortCols * kTileRows> sums;
  const int64_t cols = run.cols;
  for (int64_t top = 0; top < run.rows; top += kTileRows) {
    const int64_t rows = smaller(kTileRows, run.rows - top);
    if (rows < kTileRows || run.last.data != nullptr) fill(u_tile, cols * kTileRows, Real(0));
    if (rows < kTileRows || run.last.data != nullptr) fill(v_tile, cols * kTileRows, Real(0));
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
    for (int64_t i = 0; i < count; ++i)
      sums.set(i, math::softmax_jacobian_term(u_tile[i], v_tile[i]));
    fold_tile(sums, cols);
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t r = 0; r < kTileRows; ++r)
        u_tile[i * kTileRows + r] = math::softmax_jacobian(
            u_tile[i * kTileRows + r], v_tile[i * kTileRows + r], sums.at(r), scale);
    for (int64_t r = 0; r < rows; ++r) {
      T* const output = row_of<T>(run.output, top + r);
#pragma GCC unroll 4
      for (int64_t i = 0; i < cols; ++i) output[i] = math::round_to<T>(u_tile[i * kTileRows + r]);
    }
  }
}

template <class T>
void jacobian(const JacobianRun& run) {
  if (run.cols <= kShortCols) return short_jacobian_rows<T>(run);
  using Real = real_of<T>;
  const Real scale = math::softmax_derivative_scale<Real>(run.scale);
  for (int64_t row = 0; row < run.rows; ++row) {
    T* const output = row_of<T>(run.output, row);
    const int64_t visible = visible_cols(run, row);
    if (visible <= 0)
      zero(run, output, run.cols);
    else
      jacobian_row(run, row_of<const T>(run.u, row), row_of<const T>(run.v, row), output, visible,
                   scale);
  }
  end_stream();
}

}  // namespace

constexpr JacobianKernels jacobian_kernels = {
    {jacobian<math::float16>, jacobian<math::bfloat16>, jacobian<float>, jacobian<double>}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
