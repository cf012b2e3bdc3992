// Positions of a call's rows in its arrays, for programs generated as CUDA C++. A part of
// generated/cuda/row_driver.cuh.
#ifndef BRIDGE_GENERATED_CUDA_PLACES_CUH_
#define BRIDGE_GENERATED_CUDA_PLACES_CUH_

#include "cuda/division.h"
#include "cuda/vector.h"
#include "drivers/integers.h"
#include "generated/cuda/call.h"
#include "math/philox.h"

namespace bridge::interpreter {

constexpr int32_t kLastDim = BRIDGE_MAX_DIMS - 1;

template <class P>
class RowPlaces {
 public:
  using Real = typename P::Real;
  using Params = GeneratedParams<P::kArrays, P::kConstants>;
  static constexpr int kVector = P::kVector;

  BRIDGE_DEVICE int64_t col_stride(int array) const { return params_.array[array].col_stride; }
  BRIDGE_DEVICE int64_t row_stride(int array) const {
    return params_.array[array].stride[kLastDim];
  }
  BRIDGE_DEVICE bool has_vectors(int array) const {
    return (space_.vectors[array / 64] >> array % 64 & 1) != 0;
  }
  // Returns a constant of the call's bytecode.
  BRIDGE_DEVICE Real constant(int i) const {
    if constexpr (sizeof(Real) == sizeof(float)) return params_.constant[i].single;
    return static_cast<Real>(params_.constant[i].number);
  }
  BRIDGE_DEVICE uint32_t last_dropped(int i) const { return params_.constant[i].last_dropped; }

  template <class T, int kEach = 1>
  BRIDGE_DEVICE T* place(int array, int half) const {
    const bridge_program_array& a = params_.array[array];
    int64_t offset = interpreter::element_of(a, space_.cols, half, 0) +
                     static_cast<int64_t>(inner_) * a.stride[kLastDim];
    if (outer_ != 0) offset += outer_offset(a);
    return static_cast<T*>(a.data) + offset;
  }
  template <class T>
  BRIDGE_DEVICE Real load_row(int array) const {
    return simt::widen<Real>(*place<T>(array, 0));
  }
  BRIDGE_DEVICE int64_t load_label(int array) const {
    const int32_t dtype = params_.array[array].dtype;
    const auto* const start = static_cast<const char*>(params_.array[array].data);
    return load_integer(dtype, start + (place<char>(array, 0) - start) * element_bytes(dtype));
  }

  // Returns the element of a row in column `col`.
  template <class T>
  BRIDGE_DEVICE T element_at(int array, int half, int64_t col) const {
    return place<T>(array, half)[col * col_stride(array)];
  }
  // Returns `col`, or -1 if the row has no such column.
  BRIDGE_DEVICE int place_of(int64_t col) const {
    return col >= 0 && col < space_.cols ? static_cast<int>(col) : -1;
  }

  // Draws the random words of a vector, `rows` rows after the current one. kBranches: a branch
  // skips the last group of words, which is rarely needed. No loads may have to wait for the
  // branch.
  template <bool kBranches>
  BRIDGE_DEVICE void draw_at(int64_t seed, int64_t offset, int64_t start, int rows, int col,
                             uint32_t (&words)[kVector]) const {
    const uint64_t row = static_cast<uint64_t>(row_in_batch_) + static_cast<uint64_t>(rows);
    const uint64_t first = static_cast<uint64_t>(start) +
                           row * static_cast<uint64_t>(space_.index_cols) +
                           static_cast<uint64_t>(col);
    const uint32_t shift = static_cast<uint32_t>(first % 4);
    constexpr int kGroups = (kVector + 6) / 4;
    uint32_t drawn[4 * kGroups] = {};
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      // If rows begin at a group of four words, a vector needs no part of a further group.
      if (kBranches && 4 * i >= kVector + static_cast<int>(shift)) continue;
      // Element indices may wrap around to 0.
      const uint64_t group = (first / 4 * 4 + 4 * static_cast<uint64_t>(i)) / 4;
      const math::Philox four =
          math::philox(static_cast<uint64_t>(seed), static_cast<uint64_t>(offset), group);
#pragma unroll
      for (int j = 0; j < 4; ++j) drawn[4 * i + j] = four.words[j];
    }
    // No index is computed at run time: that would move the words out of registers.
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const uint32_t low = shift % 2 != 0 ? drawn[e + 1] : drawn[e];
      const uint32_t high = shift % 2 != 0 ? drawn[e + 3] : drawn[e + 2];
      words[e] = shift >= 2 ? high : low;
    }
  }

 protected:
  explicit BRIDGE_DEVICE RowPlaces(const Params& params) : params_(params), space_(params.space) {}

  BRIDGE_DEVICE void find(int64_t row) {
    row_ = row;
    const int64_t size = space_.size[kLastDim];
    outer_ = 0;
    inner_ = static_cast<uint32_t>(row);
    if (size != space_.rows) {
      outer_ = simt::divide(row, size);
      inner_ = static_cast<uint32_t>(row - outer_ * size);
    }
    row_in_batch_ = P::kDraws ? row - simt::divide(row, space_.batch_rows) * space_.batch_rows : 0;
  }

  // Returns the offset (elements) of a row in the dimensions before the last one.
  BRIDGE_DEVICE int64_t outer_offset(const bridge_program_array& a) const {
    if (space_.dims <= 2) return outer_ * a.stride[kLastDim - 1];
    int64_t offset = 0, rest = outer_;
#pragma unroll 1
    for (int32_t d = kLastDim - 1; d > kLastDim - space_.dims; --d) {
      const int64_t above = simt::divide(rest, space_.size[d]);
      offset += (rest - above * space_.size[d]) * a.stride[d];
      rest = above;
    }
    return offset;
  }

  const Params& params_;
  const GeneratedSpace& space_;
  int64_t row_ = 0, outer_ = 0, row_in_batch_ = 0;
  uint32_t inner_ = 0;
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_PLACES_CUH_
