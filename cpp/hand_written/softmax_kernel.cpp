// Softmax on a run of rows, compiled once for each instruction set into a namespace of its own.
// Everything but the table is internal to this file, and no function of the standard library is
// used: the linker might choose an inline function compiled here for AVX-512 for other code.
#include "hand_written/softmax_kernel.h"

#include <type_traits>

#include "cpu/tile.h"
#include "drivers/rows/row_sums.h"
#include "hand_written/run_rows.h"
#include "math/softmax.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using math::precision_of;

// Returns the larger key; ignores NaN.
template <class Real>
inline __attribute__((always_inline)) Real larger(Real key, Real largest) {
  return key > largest ? key : largest;
}

// For results of 16 bits, a NaN among the keys must reach the largest key. The keys are added up,
// because comparisons take longer. If the sum is NaN, perhaps without a NaN among the keys, the
// keys are searched.
template <class T>
constexpr bool kLooksForNan = math::is_for_16_bits<precision_of<T>>;

template <class Real>
inline __attribute__((always_inline)) const math::SoftmaxScale<Real>& scale_of(
    const SoftmaxRun& run) {
  if constexpr (sizeof(Real) == sizeof(double))
    return run.scale_double;
  else
    return run.scale;
}

constexpr float kInfinity = __builtin_inff();

// The number of elements of a block, in rows that are not short.
constexpr int64_t kBlock = 64;

// The mask of a row, or null. If one byte hides the whole row, `visible` is 0.
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

// Lane i has the maximum and the sum of the keys i, i + kLanes, … of a row so far.
template <class T>
struct KeyLanes {
  using Real = real_of<T>;
  static constexpr int64_t kLanes = kBlock / 2;
  alignas(64) Real largest[kLanes];
  alignas(64) Real sum[kLanes];

  inline __attribute__((always_inline)) KeyLanes() {
    fill(largest, kLanes, Real(-kInfinity));
    if constexpr (kLooksForNan<T>) fill(sum, kLanes, Real(0));
  }
  inline __attribute__((always_inline)) void add(int64_t i, Real a, Real b) {
    largest[i] = larger(larger(a, b), largest[i]);
    if constexpr (kLooksForNan<T>) sum[i] = sum[i] + (a + b);
  }
  inline __attribute__((always_inline)) Real fold() {
    for (int i = 0; i < 16; ++i) largest[i] = larger(largest[i], largest[i + 16]);
    for (int i = 0; i < 8; ++i) largest[i] = larger(largest[i], largest[i + 8]);
    for (int i = 0; i < 4; ++i) largest[i] = larger(largest[i], largest[i + 4]);
    return larger(larger(largest[0], largest[1]), larger(largest[2], largest[3]));
  }
};

// Computes the keys of a block. The mask has a loop of its own: a loop over elements of two sizes
// is not vectorized for every instruction set. Keys without a conversion are written to memory
// before it: otherwise GCC reads x under the mask, which takes longer.
template <bool kMasked, class T, class Real>
inline __attribute__((always_inline)) void find_block_keys(const T* x, const uint8_t* mask,
                                                           Real half, Real* key,
                                                           KeyLanes<T>& lanes) {
  const math::SoftmaxScale<Real> scale{half, 0, 0, 0};
  if constexpr (std::is_same_v<T, math::float16>) load_run_of<T>(x, key, kBlock);
  const auto found = [&](int64_t i) __attribute__((always_inline)) {
    if constexpr (std::is_same_v<T, math::float16>)
      return math::softmax_key(key[i], scale);
    else
      return math::softmax_key(to_real<Real>(x[i]), scale);
  };
  if constexpr (kMasked) {
    constexpr bool is_converted = !std::is_same_v<T, Real>;
    if constexpr (!is_converted) {
      BRIDGE_INDEPENDENT
      for (int64_t i = 0; i < kBlock; ++i) key[i] = found(i);
    }
    BRIDGE_INDEPENDENT
    for (int64_t i = 0; i < kBlock; ++i) {
      // Computed for hidden elements too, so that no read depends on a condition.
      const Real value = is_converted ? found(i) : key[i];
      key[i] = mask[i] != 0 ? Real(-kInfinity) : value;
    }
  }
  constexpr int64_t kLanes = KeyLanes<T>::kLanes;
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < kLanes; ++i) {
    if constexpr (!kMasked) key[i] = found(i), key[i + kLanes] = found(i + kLanes);
    lanes.add(i, key[i], key[i + kLanes]);
  }
}

template <class Real>
inline bool any_nan(const Real* values, int64_t count) {
  int found = 0;
  for (int64_t i = 0; i < count; ++i) found |= values[i] != values[i] ? 1 : 0;
  return found != 0;
}

// Computes the keys of columns [0, count), padded with -infinity to a whole step. Returns the
// largest.
template <bool kMasked, class T, class Real>
Real find_keys(const T* x, const uint8_t* mask, int64_t count, Real half, Real* key) {
  KeyLanes<T> lanes;
  if (count >= kBlock) {
    if (count % kStep != 0) fill(key + round_up(count) - kStep, kStep, Real(-kInfinity));
    // Begins with the last columns. The last block overlaps them, and writes the same keys again:
    // so every key that is read next was written by whole vectors.
    for (int64_t i = count - kBlock, next = 0;; i = next, next += kBlock) {
      find_block_keys<kMasked>(x + i, mask + i, half, key + i, lanes);
      if (next + kBlock >= count) break;
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
    find_block_keys<true>(padded_x, padded_mask, half, key, lanes);
  }
  if constexpr (kLooksForNan<T>) {
    if (any_nan(lanes.sum, KeyLanes<T>::kLanes) && any_nan(key, count))
      return Real(__builtin_nanf(""));
  }
  return lanes.fold();
}

template <class T, class Real>
inline Real find_keys(const T* x, const uint8_t* mask, int64_t count, Real half, Real* key) {
  return mask == nullptr ? find_keys<false>(x, mask, count, half, key)
                         : find_keys<true>(x, mask, count, half, key);
}

// The terms of sum_chunk. Overwrites keys with powers.
template <class Precision>
struct Powers {
  using Real = typename Precision::real;
  using Shift = math::SoftmaxShiftFor<Precision>;
  Real* key;
  // The shift as three numbers: a copy of the structure goes through memory, and the first power
  // would wait for it.
  Real first, second, third;
  math::SoftmaxScale<Real> scale;

  inline __attribute__((always_inline)) Powers(Real* keys, const Shift& shift,
                                               const math::SoftmaxScale<Real>& of)
      : key(keys), scale(of) {
    const auto [a, b, c] = shift;
    first = a, second = b, third = c;
  }
  inline __attribute__((always_inline)) math::SoftmaxTerm<Precision> term(int64_t i) const {
    const Real power = math::softmax_power<Precision>(key[i], Shift{first, second, third}, scale);
    key[i] = power;
    return math::softmax_term<Precision>(power);
  }
};

// The inverse is not NaN, and so no result is.
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
void write_values(T* output, const Real* power, const uint8_t* mask, int64_t count,
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

// Prefetches into the second-level cache. The processor itself does not prefetch the next row,
// because it reads a row at once and then computes for a while.
inline void fetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64)
    __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
}

// A row whose powers fit into the buffer. Meanwhile the next row of x and the place of the results
// may be prefetched.
template <class T>
void buffered_row(const SoftmaxRun& run, const T* x, const uint8_t* mask, T* output,
                  int64_t visible) {
  if (visible <= 0) return zero(run, output, run.cols);
  using Precision = precision_of<T>;
  using Real = typename Precision::real;
  const math::SoftmaxScale<Real>& scale = scale_of<Real>(run);
  Real* const buffer = static_cast<Real*>(run.buffer);
  const math::SoftmaxShiftFor<Precision> shift =
      math::softmax_shift<Precision>(find_keys(x, mask, visible, scale.half, buffer), scale);
  // Whole steps: the padding has the power 0.
  const auto total = sum_row<math::SoftmaxTerm<Precision>>(
      round_up(visible),
      [&](int64_t col) {
        if (run.fetches) {
          const int64_t chunk = smaller(kSumChunk, visible - col) * static_cast<int64_t>(sizeof(T));
          fetch(reinterpret_cast<const char*>(x + col) + run.x.row_bytes, chunk);
          if (!run.streams) fetch(output + col, chunk);
        }
        return Powers<Precision>{buffer + col, shift, scale};
      },
      [&] { return Powers<Precision>{buffer, shift, scale}; });
  const math::SoftmaxInverse<Real> inverse = math::softmax_inverse(total, shift);
  write_row(run, output, visible, run.cols, [&](T* to, int64_t begin, int64_t count) {
    write_values(to, buffer + begin, mask == nullptr ? nullptr : mask + begin, count, inverse);
  });
}

// A row longer than the buffer. x is read for the largest key, and again for the powers. Powers are
// kept in the output, or computed twice if its elements are too small. All passes go forward: a
// backward pass finds the end of the row in a cache, but the processor does not prefetch the rest.
template <class T>
void long_row(const SoftmaxRun& run, const T* x, const uint8_t* mask, T* output, int64_t visible) {
  using Precision = precision_of<T>;
  using Real = typename Precision::real;
  constexpr bool output_holds_powers = std::is_same_v<T, Real>;
  const math::SoftmaxScale<Real>& scale = scale_of<Real>(run);
  Real* const buffer = static_cast<Real*>(run.buffer);
  auto mask_at = [&](int64_t col) { return mask == nullptr ? nullptr : mask + col; };
  auto chunk_size = [&](int64_t col) { return smaller(kSumChunk, visible - col); };
  // The powers of an incomplete chunk are padded, and do not fit into the output.
  auto powers_at = [&](int64_t col) {
    if constexpr (output_holds_powers) {
      if (visible - col >= kSumChunk) return output + col;
    }
    return buffer;
  };
  auto chunk_keys = [&](int64_t col, Real* key) {
    return find_keys(x + col, mask_at(col), chunk_size(col), scale.half, key);
  };
  Real largest = Real(-kInfinity);
  for (int64_t col = 0; col < visible; col += kSumChunk)
    largest = math::softmax_larger(chunk_keys(col, buffer), largest);
  const math::SoftmaxShiftFor<Precision> shift = math::softmax_shift<Precision>(largest, scale);
  // Whole steps: the padding has the power 0.
  const auto total = sum_row<math::SoftmaxTerm<Precision>>(
      round_up(visible),
      [&](int64_t col) {
        Real* const key = powers_at(col);
        chunk_keys(col, key);
        return Powers<Precision>{key, shift, scale};
      },
      [&] { return Powers<Precision>{buffer, shift, scale}; });
  const math::SoftmaxInverse<Real> inverse = math::softmax_inverse(total, shift);
  for (int64_t col = 0; col < visible; col += kSumChunk) {
    const int64_t count = chunk_size(col);
    Real* const power = powers_at(col);
    if constexpr (output_holds_powers) {
      write_values(output + col, power, mask_at(col), count, inverse);
    } else {
      chunk_keys(col, power);
      const Powers<Precision> powers{power, shift, scale};
      const int64_t padded = round_up(count);
      BRIDGE_INDEPENDENT
      for (int64_t i = 0; i < padded; ++i) powers.term(i);
      write_row(run, output + col, count, count, [&](T* to, int64_t, int64_t) {
        write_values(to, power, mask_at(col), count, inverse);
      });
    }
  }
  zero(run, output + visible, run.cols - visible);
}

// ---- softmax of short rows ----

// Element `col` of row `row` is at col * kTileRows + row. So each step of a row is a step of whole
// vectors, and no lane reads another.
template <class T>
void short_rows(const SoftmaxRun& run) {
  using Precision = precision_of<T>;
  using Real = typename Precision::real;
  const math::SoftmaxScale<Real> scale = scale_of<Real>(run);
  alignas(64) Real tile[kShortCols * kTileRows];
  Lanes<math::SoftmaxTerm<Precision>, kShortCols * kTileRows> sums;
  using Shift = math::SoftmaxShiftFor<Precision>;
  alignas(64) Real largest[kTileRows], first[kTileRows], second[kTileRows], third[kTileRows];
  alignas(64) Real high[kTileRows], low[kTileRows];
  const int64_t cols = run.cols;
  for (int64_t top = 0; top < run.rows; top += kTileRows) {
    const int64_t rows = smaller(kTileRows, run.rows - top);
    fill(largest, kTileRows, Real(-kInfinity));
    if (rows < kTileRows) fill(tile, cols * kTileRows, Real(-kInfinity));
    for (int64_t r = 0; r < rows; ++r) {
      const T* const x = row_of<const T>(run.x, top + r);
      const RowMask row = mask_of(run, top + r);
      int64_t i = 0;
      if (row.mask == nullptr)
#pragma GCC unroll 4
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
        largest[r] = larger(tile[i * kTileRows + r], largest[r]);
    if constexpr (kLooksForNan<T>) {
      if (any_nan(tile, cols * kTileRows)) {
        for (int64_t i = 0; i < cols * kTileRows; ++i)
          if (tile[i] != tile[i]) largest[i % kTileRows] = tile[i];
      }
    }
    for (int64_t r = 0; r < kTileRows; ++r) {
      const auto [a, b, c] = math::softmax_shift<Precision>(largest[r], scale);
      first[r] = a, second[r] = b, third[r] = c;
    }
    for (int64_t i = 0; i < cols; ++i)
      for (int64_t r = 0; r < kTileRows; ++r) {
        const Real power = math::softmax_power<Precision>(
            tile[i * kTileRows + r], Shift{first[r], second[r], third[r]}, scale);
        tile[i * kTileRows + r] = power;
        sums.set(i * kTileRows + r, math::softmax_term<Precision>(power));
      }
    fold_tile(sums, cols);
    for (int64_t r = 0; r < kTileRows; ++r) {
      const math::SoftmaxInverse<Real> inverse =
          math::softmax_inverse(sums.at(r), Shift{first[r], second[r], third[r]});
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
#pragma GCC unroll 4
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
    else
      buffered_row(run, x, row.mask, output, row.visible);
  }
  end_stream();
}

}  // namespace

constexpr SoftmaxKernels softmax_kernels = {
    {softmax<math::float16>, softmax<math::bfloat16>, softmax<float>, softmax<double>}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
