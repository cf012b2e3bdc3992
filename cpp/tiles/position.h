// Positions of rows in arrays of any strides, and strided loads and stores. Include it only in
// files compiled once for each instruction set.
#ifndef BRIDGE_TILES_POSITION_H_
#define BRIDGE_TILES_POSITION_H_

#include "cpu/tile.h"
#include "drivers/integers.h"
#include "program/machine.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// Calls run with a value of the unsigned type of `bytes` bytes.
template <class Run>
inline void with_size(int64_t bytes, const Run& run) {
  if (bytes == 1) return run(uint8_t{});
  if (bytes == 2) return run(uint16_t{});
  if (bytes == 4) return run(uint32_t{});
  run(uint64_t{});
}

inline void gather(int64_t bytes, const char* from, int64_t stride, char* to, int64_t count) {
  with_size(bytes, [=](auto element) {
    using T = decltype(element);
    const T* const elements = reinterpret_cast<const T*>(from);
    T* const tile = reinterpret_cast<T*>(to);
    if (stride == 1) return copy(tile, elements, count);
    if (stride == 0) return fill(tile, count, elements[0]);
    if (stride == 2) {  // pairs: this loop is vectorized
      for (int64_t j = 0; j < count; ++j) tile[j] = elements[2 * j];
      return;
    }
    for (int64_t j = 0; j < count; ++j) tile[j] = elements[j * stride];
  });
}

inline void scatter(int64_t bytes, const char* from, char* to, int64_t stride, int64_t count) {
  with_size(bytes, [=](auto element) {
    constexpr int64_t size = sizeof element;
    for (int64_t j = 0; j < count; ++j) memcpy(to + j * stride * size, from + j * size, size);
  });
}

// Writes `count` pairs, in which elements of `even` and `odd` alternate.
inline void interleave(int64_t bytes, const char* even, const char* odd, char* to, int64_t count) {
  with_size(bytes, [=](auto element) {
    using T = decltype(element);
    const T* const evens = reinterpret_cast<const T*>(even);
    const T* const odds = reinterpret_cast<const T*>(odd);
    T* const pairs = reinterpret_cast<T*>(to);
    BRIDGE_INDEPENDENT
    for (int64_t j = 0; j < count; ++j) {
      pairs[2 * j] = evens[j];
      pairs[2 * j + 1] = odds[j];
    }
  });
}

// The number of strided elements that are gathered at once before a conversion.
constexpr int64_t kGathered = 256;

template <class Real>
void load_strided(int32_t dtype, const char* from, int64_t stride, Real* to, int64_t count) {
  const int64_t bytes = element_bytes(dtype);
  if (stride == 1 || count <= 1) return load_run(dtype, from, to, count);
  if (stride == 0) {
    load_run(dtype, from, to, 1);
    return fill(to + 1, count - 1, to[0]);
  }
  alignas(64) char together[kGathered * sizeof(double)];
  for (int64_t i = 0; i < count; i += kGathered) {
    const int64_t some = smaller(kGathered, count - i);
    gather(bytes, from + i * stride * bytes, stride, together, some);
    load_run(dtype, together, to + i, some);
  }
}

template <class Real>
void store_strided(int32_t dtype, char* to, int64_t stride, const Real* from, int64_t count) {
  const int64_t bytes = element_bytes(dtype);
  if (stride == 1 || count == 1) return store_run(dtype, to, from, count);
  alignas(64) char together[kGathered * sizeof(double)];
  for (int64_t i = 0; i < count; i += kGathered) {
    const int64_t some = smaller(kGathered, count - i);
    store_run(dtype, together, from + i, some);
    scatter(bytes, together, to + i * stride * bytes, stride, some);
  }
}

template <class Real>
void store_pairs(int32_t dtype, char* to, const Real* even, const Real* odd, int64_t count) {
  const int64_t bytes = element_bytes(dtype);
  alignas(64) char evens[kGathered * sizeof(double)], odds[kGathered * sizeof(double)];
  for (int64_t i = 0; i < count; i += kGathered) {
    const int64_t some = smaller(kGathered, count - i);
    store_run(dtype, evens, even + i, some);
    store_run(dtype, odds, odd + i, some);
    interleave(bytes, evens, odds, to + 2 * i * bytes, some);
  }
}

// Consecutive rows of one batch that differ only in the last row dimension.
struct Position {
  const bridge_program& call;
  int64_t first = 0;  // index of the first row in its batch
  int64_t count = 0;
  int64_t index[BRIDGE_MAX_DIMS] = {};  // of the first row, in each dimension

  // Calls run() for all `rows`, in groups of at most `at_once`. This position is set to each group.
  template <class Run>
  void walk(const interpreter::Rows& rows, int64_t at_once, const Run& run) {
    const int64_t length = has_rows() ? call.size[call.dims - 1] : 1;
    for (int64_t row = 0; row < rows.count; row += count) {
      first = rows.first + row;
      count = smaller(smaller(length - first % length, rows.count - row), at_once);
      find(first, call.batch_dims, call.dims);
      find(rows.batch, 0, call.batch_dims);
      run();
    }
  }

  // Advances by `rows` rows within the group that walk() found.
  void skip(int64_t rows) {
    first += rows;
    if (has_rows()) index[call.dims - 1] += rows;
  }

  // The offset (elements) and the address of the first row's first element, and the distance
  // (elements) to the next row.
  int64_t offset(const bridge_program_array& array) const {
    int64_t elements = 0;
    for (int32_t d = 0; d < call.dims; ++d) elements += index[d] * array.stride[d];
    return elements;
  }
  char* data(const bridge_program_array& array, int64_t col_offset = 0) const {
    return static_cast<char*>(array.data) +
           (offset(array) + col_offset) * element_bytes(array.dtype);
  }
  int64_t row_stride(const bridge_program_array& array) const {
    return has_rows() ? array.stride[call.dims - 1] : 0;
  }

  // Loads or stores one number, or one integer, of each row. Loads fill the last step with zeros.
  template <class Real>
  void load_rows(const bridge_program_array& array, Real* to) const {
    load_strided(array.dtype, data(array), row_stride(array), to, count);
    fill(to + count, round_up(count) - count, Real(0));
  }
  void load_labels(const bridge_program_array& array, int64_t* to) const {
    const int64_t stride = row_stride(array) * element_bytes(array.dtype);
    const char* const from = data(array);
    for (int64_t i = 0; i < count; ++i)
      to[i] = interpreter::load_integer(array.dtype, from + i * stride);
    fill(to + count, round_up(count) - count, int64_t{0});
  }
  template <class Real>
  void store_rows(const bridge_program_array& array, const Real* from) const {
    store_strided(array.dtype, data(array), row_stride(array), from, count);
  }

 private:
  bool has_rows() const { return call.dims > call.batch_dims; }
  void find(int64_t number, int32_t begin, int32_t end) {
    for (int32_t d = end - 1; d >= begin; --d) {
      index[d] = number % call.size[d];
      number /= call.size[d];
    }
  }
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TILES_POSITION_H_
