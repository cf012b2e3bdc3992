// The kernels of softmax_derivative, against the block and warp interface of cuda/simt.h.
// softmax_derivative.cu chooses between them and lays the call under their threads.
#ifndef BRIDGE_OPS_SOFTMAX_SOFTMAX_DERIVATIVE_CUH_
#define BRIDGE_OPS_SOFTMAX_SOFTMAX_DERIVATIVE_CUH_

#include <bridge/bridge.h>

#include "drivers/rows/row_nodes.cuh"
#include "drivers/rows/row_team.cuh"
#include "math/convert.h"
#include "math/softmax.h"

namespace bridge::softmax_derivative {

using rows::Sum;
using simt::Vector16;

enum Array { kU, kV, kW, kOutput, kArrays };
enum Dot { kVW, kUW, kUV, kDots };

struct Params {
  rows::RowLayout<kArrays> layout;
  char* data[kArrays];
  int32_t terms;
  float scale_single;
  double scale_double;
  int warps;  // of a block that has a row for itself

  // A row on several blocks: each has a segment, and leaves a node of each dot.
  int64_t first_row;  // of this launch
  int64_t rows;
  int64_t segments;
  rows::Nodes dots[kDots];
};

template <class Real>
BRIDGE_DEVICE Real scale_of(const Params& params) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    return params.scale_single;
  } else {
    return params.scale_double;
  }
}

// Where a thread's row is, and its vectors there.
template <class Team, class Precision, bool kAligned>
struct Row {
  using T = typename Team::T;
  using Real = typename Precision::real;
  static constexpr int kVector = Team::kVector;
  static constexpr int kVectors = Team::kVectors;

  T* data[kArrays];
  int cols;     // of the row, or of the segment
  int visible;  // columns before this are not hidden by the causal rule

  // Columns count from `begin`; those behind Team::kCols belong to others. A row that does not
  // exist has no columns.
  BRIDGE_DEVICE Row(const Params& params, int64_t index, int64_t begin) {
    const bool exists = index < params.layout.rows;
    const int64_t row = exists ? index : 0;
    int64_t offset[kArrays];
    rows::find_row(params.layout, row, offset);
#pragma unroll
    for (int a = 0; a < kArrays; ++a) {
      data[a] = reinterpret_cast<T*>(params.data[a] + offset[a]) + begin;
    }
    cols = exists ? rows::columns_from(params.layout.cols, begin, Team::kCols) : 0;
    visible = cols;
    if (params.layout.queries != 0) {
      const int64_t seen = rows::visible_columns(params.layout, row);
      visible = exists ? rows::columns_from(seen, begin, Team::kCols) : 0;
    }
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

  // Puts `substitute` in the place of hidden elements.
  BRIDGE_DEVICE void hide(int q, Real (&value)[kVector], Real substitute) const {
    const int count = visible - column(q);
    if (count >= kVector) return;
#pragma unroll
    for (int i = 0; i < kVector; ++i) value[i] = i < count ? value[i] : substitute;
  }

  BRIDGE_DEVICE void store(int q, const Real (&value)[kVector]) const {
    rows::store_vector<kAligned>(data[kOutput] + column(q), simt::round_to_words<T>(value),
                                 cols - column(q));
  }
};

// Without w: the Jacobian. The operands stay in registers.
template <class Team, class Precision, bool kAligned>
struct Jacobian {
  using Row = softmax_derivative::Row<Team, Precision, kAligned>;
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

// The general form is for second derivatives and rarer: it reads its operands once for each dot and
// once for the result.
BRIDGE_HD bool asks_for(int32_t terms, Dot dot) {
  return (terms & (BRIDGE_SOFTMAX_U << static_cast<int>(dot))) != 0;
}

template <class Team, class Row, class Real = typename Row::Real>
BRIDGE_DEVICE Real dot_of(const Row& row, Dot dot, int warps) {
  const auto* a = dot == kVW ? row.data[kV] : row.data[kU];
  const auto* b = dot == kUV ? row.data[kV] : row.data[kW];
  return Team::template sum<Real, 0>(warps, [&](int q, int first, auto& term) {
    for (Real& t : term) t = Real(-0.0);
    if (!row.reaches(q)) return;
    Real x[Row::kVector], y[Row::kVector];
    Row::widen(row.load(a, q), x);
    Row::widen(row.load(b, q), y);
#pragma unroll
    for (int i = 0; i < Row::kVector; ++i) x[i] = x[i] * y[i];
    row.hide(q, x, Real(-0.0));
    int i = first;
    for (Real& t : term) t = x[i++];
  });
}

template <class Row, class Real = typename Row::Real>
BRIDGE_DEVICE void store_general(const Row& row, int32_t terms, const Real (&dot)[kDots],
                                 Real scale) {
#pragma unroll
  for (int q = 0; q < Row::kVectors; ++q) {
    if (row.column(q) >= row.cols) continue;
    Real result[Row::kVector] = {};
    if (row.reaches(q)) {
      Real u[Row::kVector], v[Row::kVector], w[Row::kVector];
      Row::widen(row.load(row.data[kU], q), u);
      Row::widen(row.load(row.data[kV], q), v);
      Row::widen(row.load(row.data[kW], q), w);
#pragma unroll
      for (int i = 0; i < Row::kVector; ++i) {
        result[i] =
            math::softmax_derivative(terms, u[i], v[i], w[i], dot[kVW], dot[kUW], dot[kUV], scale);
      }
      row.hide(q, result, Real(0));
    }
    row.store(q, result);
  }
}

// Rows that a team holds in its registers.
template <class Team_, class Precision, bool kAligned>
struct JacobianKernel {
  using Team = Team_;
  using Params = softmax_derivative::Params;
  using Real = typename Precision::real;
  static constexpr int kThreads = Team::kThreads;
  static constexpr int kMinBlocks = sizeof(Real) == sizeof(double) ? 1 : Team::kMinBlocks;

  static BRIDGE_DEVICE void run(const Params& params) {
    rows::for_each_row<Team>(params.layout.rows, [&](int64_t index) {
      const Row<Team, Precision, kAligned> row(params, index, 0);
      const Jacobian<Team, Precision, kAligned> jacobian(row);
      Team::join();
      const Real dot = jacobian.dot(params.warps);
      jacobian.store(dot, scale_of<Real>(params));
    });
  }
};

template <class Team_, class Precision>
struct GeneralKernel {
  using Team = Team_;
  using Params = softmax_derivative::Params;
  using Real = typename Precision::real;
  static constexpr int kThreads = Team::kThreads;
  static constexpr int kMinBlocks = Team::kMinBlocks;

  static BRIDGE_DEVICE void run(const Params& params) {
    rows::for_each_row<Team>(params.layout.rows, [&](int64_t index) {
      const Row<Team, Precision, false> row(params, index, 0);
      Real dot[kDots] = {};
#pragma unroll
      for (int d = 0; d < kDots; ++d) {
        if (!asks_for(params.terms, static_cast<Dot>(d))) continue;
        dot[d] = dot_of<Team>(row, static_cast<Dot>(d), params.warps);
      }
      store_general(row, params.terms, dot, scale_of<Real>(params));
    });
  }
};

// Longer rows are cut into segments and read twice: for the dots, for the result.
enum class Step { dots, store };

template <class T, class Precision, Step kStep, bool kJacobian>
struct SegmentKernel {
  using Team = rows::SegmentTeam<T>;
  using Params = softmax_derivative::Params;
  using Real = typename Precision::real;
  static constexpr int kThreads = Team::kThreads;
  static constexpr int kMinBlocks = Team::kMinBlocks;

  static BRIDGE_DEVICE void run(const Params& params) {
    rows::for_each_row<Team>(params.rows * params.segments, [&](int64_t node) {
      const int64_t index = simt::divide(node, params.segments);
      const int64_t segment = node - index * params.segments;
      const Row<Team, Precision, false> row(params, params.first_row + index,
                                            segment * Team::kCols);
      if constexpr (kStep == Step::dots) {
        add_up(params, row, node);
      } else {
        store(params, row, index);
      }
    });
  }

  static BRIDGE_DEVICE void add_up(const Params& params, const Row<Team, Precision, false>& row,
                                   int64_t node) {
    constexpr int kWarps = rows::kSegmentChunks;
    if constexpr (kJacobian) {
      rows::put_node(params.dots[kUV], node, Jacobian<Team, Precision, false>(row).dot(kWarps));
    } else {
#pragma unroll 1
      for (int d = 0; d < kDots; ++d) {
        if (!asks_for(params.terms, static_cast<Dot>(d))) continue;
        rows::put_node(params.dots[d], node, dot_of<Team>(row, static_cast<Dot>(d), kWarps));
        simt::sync();  // what was exchanged has been read
      }
    }
  }

  static BRIDGE_DEVICE void store(const Params& params, const Row<Team, Precision, false>& row,
                                  int64_t index) {
    const Real scale = scale_of<Real>(params);
    if constexpr (kJacobian) {
      const Jacobian<Team, Precision, false> jacobian(row);
      jacobian.store(rows::reduce_nodes<Sum, Real, 0>(params.dots[kUV], index), scale);
    } else {
      Real dot[kDots] = {};
#pragma unroll
      for (int d = 0; d < kDots; ++d) {
        if (!asks_for(params.terms, static_cast<Dot>(d))) continue;
        dot[d] = rows::reduce_nodes<Sum, Real, 0>(params.dots[d], index);
        simt::sync();
      }
      store_general(row, params.terms, dot, scale);
    }
  }
};

}  // namespace bridge::softmax_derivative

#endif  // BRIDGE_OPS_SOFTMAX_SOFTMAX_DERIVATIVE_CUH_
