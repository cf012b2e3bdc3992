// The kernels of the Jacobian of softmax, against the block and warp interface of cuda/simt.h.
// jacobian.cu chooses one for a call.
#ifndef BRIDGE_HAND_WRITTEN_JACOBIAN_CUH_
#define BRIDGE_HAND_WRITTEN_JACOBIAN_CUH_

#include <bridge/bridge.h>

#include "hand_written/row_team.cuh"
#include "math/convert.h"
#include "math/softmax.h"

namespace bridge::jacobian {

using rows::Sum;
using simt::Vector16;

enum Array { kU, kV, kOutput, kLast, kArrays };

struct Params {
  rows::RowLayout<kArrays> layout;
  char* data[kLast];
  rows::LastColumns last;
  float scale_single;
  double scale_double;
  int warps;  // of a block that has a row for itself
};

template <class Real>
BRIDGE_DEVICE Real scale_of(const Params& params) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    return params.scale_single;
  } else {
    return params.scale_double;
  }
}

// The place of a thread's row, and its vectors there.
template <class Team, class Precision, bool kAligned>
struct Row {
  using T = typename Team::T;
  using Real = typename Precision::real;
  static constexpr int kVector = Team::kVector;
  static constexpr int kVectors = Team::kVectors;

  T* data[kLast];
  int cols;
  int visible;  // the row sees the columns before this one

  // A row that does not exist has no columns.
  BRIDGE_DEVICE Row(const Params& params, int64_t index) {
    const bool exists = index < params.layout.rows;
    const int64_t row = exists ? index : 0;
    int64_t offset[kArrays];
    rows::find_row(params.layout, row, offset);
#pragma unroll
    for (int a = 0; a < kLast; ++a) data[a] = reinterpret_cast<T*>(params.data[a] + offset[a]);
    cols = exists ? static_cast<int>(params.layout.cols) : 0;
    visible = cols;
    if (params.last.bytes != 0) visible = rows::visible_columns(params.last, offset[kLast], cols);
  }

  static BRIDGE_DEVICE int column(int q) { return Team::first_column() + q * Team::kStep; }

  BRIDGE_DEVICE bool reaches(int q) const { return Team::reaches(q, visible); }

  BRIDGE_DEVICE Vector16 load(const T* from, int q) const {
    if (column(q) >= visible) return Vector16{};
    return rows::load_vector<kAligned>(from + column(q), visible - column(q));
  }

  static BRIDGE_DEVICE void widen(const Vector16& words, Real (&value)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) value[i] = simt::widen_element<Real, T>(words, i);
  }

  BRIDGE_DEVICE void store(int q, const Real (&value)[kVector]) const {
    rows::store_vector<kAligned>(data[kOutput] + column(q), simt::round_to_words<T>(value),
                                 cols - column(q));
  }
};

// The operands stay in registers.
template <class Team, class Precision, bool kAligned>
struct Jacobian {
  using Row = jacobian::Row<Team, Precision, kAligned>;
  using Real = typename Precision::real;
  static constexpr int kVector = Team::kVector;
  static constexpr int kVectors = Team::kVectors;

  const Row& row;
  Vector16 u[kVectors];
  Vector16 v[kVectors];

  // Hidden elements are those of u = 0.
  BRIDGE_DEVICE explicit Jacobian(const Row& row_of) : row(row_of) {
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
      u[q] = row.load(row.data[kU], q);
      v[q] = row.load(row.data[kV], q);
    }
    if constexpr (kAligned) {  // elsewhere what is not visible is not loaded
#pragma unroll
      for (int q = 0; q < kVectors; ++q) {
        const int count = row.visible - Row::column(q);
        if (count < kVector) u[q] = rows::first_elements<typename Team::T>(u[q], count);
      }
    }
  }

  BRIDGE_DEVICE Real dot(int warps) const {
    return Team::template sum<Real, 0>(warps, [&](int q, int first, auto& term) {
      for (Real& t : term) t = Real(-0.0);
      // A branch: else the compiler holds all elements as floats from here to store().
      if (!row.reaches(q)) return;
      Real a[kVector], b[kVector];
      Row::widen(u[q], a);
      Row::widen(v[q], b);
      int i = first;
      for (Real& t : term) t = math::softmax_jacobian_term(a[i], b[i]), ++i;
    });
  }

  BRIDGE_DEVICE void store(Real dot, Real scale) const {
#pragma unroll
    for (int q = 0; q < kVectors; ++q) {
      if (row.column(q) >= row.cols) continue;
      Real result[kVector] = {};
      if (row.reaches(q)) {
        Real a[kVector], b[kVector];
        Row::widen(u[q], a);
        Row::widen(v[q], b);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          result[i] = math::softmax_jacobian(a[i], b[i], dot, scale);
        }
      }
      row.store(q, result);
    }
  }
};

// Rows that a team holds in its registers.
template <class Team_, class Precision, bool kAligned>
struct JacobianKernel {
  using Team = Team_;
  using Params = jacobian::Params;
  using Real = typename Precision::real;
  static constexpr int kThreads = Team::kThreads;
  static constexpr int kMinBlocks = sizeof(Real) == sizeof(double) ? 1 : Team::kMinBlocks;

  static BRIDGE_DEVICE void run(const Params& params) {
    rows::for_each_row<Team>(params.layout.rows, [&](int64_t index) {
      const Row<Team, Precision, kAligned> row(params, index);
      const Jacobian<Team, Precision, kAligned> jacobian(row);
      Team::join();
      const Real dot = jacobian.dot(params.warps);
      jacobian.store(dot, scale_of<Real>(params));
    });
  }
};

}  // namespace bridge::jacobian

#endif  // BRIDGE_HAND_WRITTEN_JACOBIAN_CUH_
