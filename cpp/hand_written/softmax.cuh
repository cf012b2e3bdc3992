// The kernels of softmax, against the block and warp interface of cuda/simt.h. softmax.cu chooses
// between them and lays the call under their threads.
#ifndef BRIDGE_HAND_WRITTEN_SOFTMAX_CUH_
#define BRIDGE_HAND_WRITTEN_SOFTMAX_CUH_

#include "hand_written/row_team.cuh"
#include "math/convert.h"
#include "math/softmax.h"

namespace bridge::softmax {

using rows::Largest;
using rows::Sum;
using simt::Pack;
using simt::Vector16;

enum Array { kX, kMask, kOutput, kLast, kArrays };

struct Params {
  rows::RowLayout<kArrays> layout;
  const char* x;
  const uint8_t* mask;  // NULL: nothing is hidden by it
  char* output;
  bool mask_for_rows;  // one byte for a row
  math::SoftmaxScale<float> scale_single;
  math::SoftmaxScale<double> scale_double;
  rows::LastColumns last;
  int warps;  // of a block that has a row for itself
};

template <class Real>
BRIDGE_DEVICE const math::SoftmaxScale<Real>& scale_of(const Params& params) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    return params.scale_single;
  } else {
    return params.scale_double;
  }
}

// Integers of kBytes mask bytes.
template <int kBytes>
struct MaskWord;
template <>
struct MaskWord<2> {
  using type = uint16_t;
};
template <>
struct MaskWord<4> {
  using type = uint32_t;
};
template <>
struct MaskWord<8> {
  using type = uint64_t;
};

// One bit for each of four bytes, set where the byte is not 0.
BRIDGE_DEVICE uint32_t bits_of_bytes(uint32_t bytes) {
  const uint32_t highest = (((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | bytes) & 0x80808080u;
  return (highest >> 7) * 0x01020408u >> 24 & 0xfu;  // bit 8 b of the first factor to 24 + b
}

// The elements of a row in the registers of a thread.
template <class Team, class Precision, bool kAligned>
struct Row {
  using T = typename Team::T;
  using Real = typename Precision::real;
  static constexpr int kVector = Team::kVector;
  static constexpr int kVectors = Team::kVectors;
  static constexpr uint32_t kAll = (1u << kVector) - 1;

  const T* x;
  T* output;
  const uint8_t* mask;
  int cols;
  int visible;      // the row sees the columns before this one
  uint32_t hidden;  // one bit for each element; those that do not exist are hidden too
  Vector16 words[kVectors];

  // A row that does not exist has no columns.
  BRIDGE_DEVICE Row(const Params& params, int64_t index) {
    const bool exists = index < params.layout.rows;
    const int64_t row = exists ? index : 0;
    int64_t offset[kArrays];
    rows::find_row(params.layout, row, offset);
    x = reinterpret_cast<const T*>(params.x + offset[kX]);
    output = reinterpret_cast<T*>(params.output + offset[kOutput]);
    cols = exists ? static_cast<int>(params.layout.cols) : 0;
    visible = cols;
    if (params.last.bytes != 0) visible = rows::visible_columns(params.last, offset[kLast], cols);
    mask = params.mask;
    if (mask == nullptr) return;
    mask += offset[kMask];
    if (params.mask_for_rows) {
      if (*mask != 0) visible = 0;
      mask = nullptr;
    }
  }

  static BRIDGE_DEVICE int column(int q) { return Team::first_column() + q * Team::kStep; }

  BRIDGE_DEVICE bool reaches(int q) const { return Team::reaches(q, visible); }

  BRIDGE_DEVICE uint32_t hidden_of(int q) const { return hidden >> (q * kVector) & kAll; }

  BRIDGE_DEVICE uint32_t masked(int column) const {
    if constexpr (kAligned) {
      const auto word = simt::load_word<typename MaskWord<kVector>::type>(mask + column);
      uint32_t bits = bits_of_bytes(static_cast<uint32_t>(word));
      if constexpr (kVector == 8) bits |= bits_of_bytes(static_cast<uint32_t>(word >> 32)) << 4;
      return bits;
    } else {
      uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (column + i < visible && mask[column + i] != 0) bits |= 1u << i;
      }
      return bits;
    }
  }

  // A vector that is hidden as a whole is not read.
  BRIDGE_DEVICE void load() {
    hidden = 0;
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
      hidden |= rows::bits_from<kVector>(visible - column(q)) << (q * kVector);
    }
    if (mask != nullptr) {
#pragma unroll
      for (int q = 0; q < kVectors; ++q) {
        if (hidden_of(q) != kAll) hidden |= masked(column(q)) << (q * kVector);
      }
    }
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
      words[q] = Vector16{};
      if (hidden_of(q) != kAll) {
        words[q] = rows::load_vector<kAligned>(x + column(q), visible - column(q));
      }
    }
  }

  // Elements of 16 bits stay in pairs until their powers are computed: two are compared at once.
  // Here those of vector q become keys, -infinity where they are hidden; with a scale of 0 the keys
  // are 0, and NaN where x is not finite.
  BRIDGE_DEVICE void make_keys(int q, Real half) {
    uint32_t (&pair)[kVector / 2] = words[q].words;
    if (!(half > 0)) {
#pragma unroll
      for (uint32_t& p : pair) p = simt::times_sign<T>(p, half);
    }
    const uint32_t bits = hidden_of(q);
    if (bits != 0) {
#pragma unroll
      for (int i = 0; i < kVector / 2; ++i) pair[i] = simt::lowest_where<T>(pair[i], bits, i);
    }
  }

  // All of them, where the largest is known.
  BRIDGE_DEVICE void make_keys(const math::SoftmaxScale<Real>& scale) {
    if constexpr (math::is_for_16_bits<Precision>) {
#pragma unroll
      for (int q = 0; q < kVectors; ++q) {
        if (reaches(q)) make_keys(q, scale.half);
      }
    }
  }

  BRIDGE_DEVICE uint32_t largest_pair(Real half) {
    uint32_t result = simt::lowest_pair<T>();
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
      if (!reaches(q)) continue;
      make_keys(q, half);
#pragma unroll
      for (const uint32_t& p : words[q].words) result = simt::larger_pair<T>(p, result);
    }
    return result;
  }

  BRIDGE_DEVICE void powers_of_pairs(const math::SoftmaxLine& line,
                                     Real (&power)[kVectors][kVector]) const {
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) power[q][i] = Real(0);
      if (!reaches(q)) continue;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        power[q][i] =
            math::softmax_power<Precision>(simt::widen_element<Real, T>(words[q], i), line);
      }
    }
  }

  // The largest key of this thread; where elements are pairs, they become keys here. Multiplying is
  // monotonic, so one product does for all; what an infinite x makes of a scale of 0 is NaN, and so
  // is its row, whatever is largest there.
  BRIDGE_DEVICE Real largest(const math::SoftmaxScale<Real>& scale) {
    const Real half = scale.half;
    if constexpr (math::is_for_16_bits<Precision>) {
      const math::FloatPair both = math::to_float_pair<T>(largest_pair(half));
      return math::softmax_larger(both.first, both.second);
    }
    const Real x = half < 0 ? largest_x<true>() : largest_x<false>();
    return x < -math::Format<Real>::largest ? x : math::absolute(half) * x;
  }

  // The largest x that is not hidden, or the largest -x.
  template <bool kNegative>
  BRIDGE_DEVICE Real largest_x() const {
    Real result = Largest::identity<Real>();
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
      if (!reaches(q)) continue;
      Real value[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        value[i] = simt::widen_element<Real, T>(words[q], i);
        if (kNegative) value[i] = -value[i];
      }
      hide(q, value, Largest::identity<Real>());
#pragma unroll
      for (int i = 0; i < kVector; ++i) result = math::softmax_larger(value[i], result);
    }
    return result;
  }

  BRIDGE_DEVICE void hide(int q, Real (&value)[kVector], Real substitute) const {
    const uint32_t bits = hidden_of(q);
    if (bits == 0) return;
#pragma unroll
    for (int i = 0; i < kVector; ++i) value[i] = (bits >> i & 1) != 0 ? substitute : value[i];
  }

  BRIDGE_DEVICE void powers(const math::SoftmaxScale<Real>& scale,
                            const math::SoftmaxShiftFor<Precision>& shift,
                            Real (&power)[kVectors][kVector]) const {
    if constexpr (math::is_for_16_bits<Precision>) {
      powers_of_pairs(shift, power);
    } else {
#pragma unroll
      for (int q = 0; q < kVectors; ++q) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) power[q][i] = Real(0);
        if (!reaches(q)) continue;
        Real key[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          key[i] = math::softmax_key(simt::widen_element<Real, T>(words[q], i), scale);
        }
        hide(q, key, Largest::identity<Real>());
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          power[q][i] = math::softmax_power<Precision>(key[i], shift, scale);
        }
      }
    }
  }

  BRIDGE_DEVICE void store(Real (&power)[kVectors][kVector],
                           math::SoftmaxInverse<Real> inverse) const {
    if (inverse.high != inverse.high) {
      // 0 times anything but NaN is the 0 that hidden elements get.
#pragma unroll
      for (int q = 0; q < kVectors; ++q) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) power[q][i] = inverse.high;
        hide(q, power[q], Real(0));
      }
      inverse = {Real(1), Real(0)};
    }
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
      if (column(q) >= cols) continue;
      Vector16 result{};
      if (reaches(q)) {
        Real y[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i)
          y[i] = math::softmax_value<Precision>(power[q][i], inverse);
        result = simt::round_to_words<T>(y);
      }
      rows::store_vector<kAligned>(output + column(q), result, cols - column(q));
    }
  }
};

template <class Team, class Precision, class Real>
BRIDGE_DEVICE math::SoftmaxTerm<Precision> sum_of(
    const Real (&power)[Team::kVectors][Team::kVector], int warps) {
  using Term = math::SoftmaxTerm<Precision>;
  return Team::template sum<Term, 1>(warps, [&](int q, int first, auto& term) {
    int i = first;
    for (Term& t : term) t = math::softmax_term<Precision>(power[q][i++]);
  });
}

// Rows that a team holds in its registers: one read and one write of memory.
template <class Team_, class Precision, bool kAligned>
struct RowsKernel {
  using Team = Team_;
  using Params = softmax::Params;
  using Real = typename Precision::real;
  static constexpr int kThreads = Team::kThreads;
  static constexpr int kMinBlocks = Team::kMinBlocks;

  static BRIDGE_DEVICE void run(const Params& params) {
    rows::for_each_row<Team>(params.layout.rows, [&](int64_t row) { visit(params, row); });
  }

  static BRIDGE_DEVICE void visit(const Params& params, int64_t index) {
    const math::SoftmaxScale<Real>& scale = scale_of<Real>(params);
    Row<Team, Precision, kAligned> row(params, index);
    row.load();
    Team::join();
    const Real largest = Team::template reduce<Largest, 0>(row.largest(scale), params.warps);
    Real power[Team::kVectors][Team::kVector];
    const auto shift = math::softmax_shift<Precision>(largest, scale);
    row.powers(scale, shift, power);
    row.store(power, math::softmax_inverse(sum_of<Team, Precision>(power, params.warps), shift));
  }
};

}  // namespace bridge::softmax

#endif  // BRIDGE_HAND_WRITTEN_SOFTMAX_CUH_
