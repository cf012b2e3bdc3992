// What a thread of the bias_gelu kernels does in each row: loads, evaluates, stores, adds up.
#ifndef BRIDGE_OPS_BIAS_GELU_BIAS_GELU_OPERANDS_CUH_
#define BRIDGE_OPS_BIAS_GELU_BIAS_GELU_OPERANDS_CUH_

#include "cuda/vector.h"
#include "math/convert.h"
#include "math/gelu.h"
#include "ops/bias_gelu/bias_gelu.h"
#include "walks/columns/column_walk.cuh"

namespace bridge::bias_gelu {

using math::GeluForm;
using simt::Pack;

using columns::advance;
using columns::first;
using columns::load_real;
using columns::store_real;

constexpr int kMaxHotFactors = 2;

struct Params : columns::Walk {
  bridge_bias_gelu call;
  int64_t input_step;
  int64_t factor_step[kMaxHotFactors];
  int64_t output_step;

  template <class Visit>
  void for_each_full(const Visit& visit) {
    visit(call.input.full, &input_step);
    for (int i = 0; i < call.factors; ++i) {
      visit(call.factor[i].full, i < kMaxHotFactors ? &factor_step[i] : nullptr);
    }
    visit(call.output.full, &output_step);
  }
};

// The hot calls: every full operand of one dtype whose arithmetic is native to it, every factor one
// full operand, all of them alike towards 16-byte boundaries.
template <class T, class Precision, GeluForm kForm, int kOrder, int kFactors>
struct HotOperands {
  using Params = bias_gelu::Params;
  using Real = typename Precision::real;
  static constexpr int kVector = Pack<T>::kCount;
  static_assert(kFactors <= kMaxHotFactors);
  // Two turns in one loop body: else a thirtieth of the instructions only moves the next row's
  // words to their place. In float64, and with two factors, that would spill.
  static constexpr int kUnroll = sizeof(Real) == sizeof(float) && kFactors < 2 ? 2 : 1;
  // More blocks hide more of the memory's latency; each step leaves fewer registers to a thread.
  // These are the most that spill on none of sm_80, sm_90 and sm_100.
  static constexpr int kMinBlocks = sizeof(T) == 4 && kOrder < 2 ? 4 - kOrder : 2;

  const T* input;
  const T* factor[kMaxHotFactors];
  T* output;
  Real bias[kVector];

  BRIDGE_DEVICE HotOperands(const Params& params, int64_t batch, int64_t row, int64_t position) {
    const bridge_bias_gelu& call = params.call;
    input = first<T>(call.input.full, batch, row, position);
#pragma unroll
    for (int i = 0; i < kFactors; ++i) {
      factor[i] = first<T>(call.factor[i].full, batch, row, position);
    }
    output = first<T>(call.output.full, batch, row, position);
    columns::load_row(params, call.input.row, batch, position, bias);
  }

  BRIDGE_DEVICE void advance_inputs(const Params& params) {
    advance(input, params.input_step);
#pragma unroll
    for (int i = 0; i < kFactors; ++i) advance(factor[i], params.factor_step[i]);
  }

  // Walks `turns` whole vectors. The next row is loaded while one is computed. In-place
  // calls allow it: a row's elements are read and written by one thread, and no two rows share
  // memory.
  template <bool kSums>
  BRIDGE_DEVICE void walk_whole(const Params& params, int turns, Real (&sum)[kVector]) {
    // They stay in words: 16-bit elements in registers of their own would be packed and unpacked
    // twice.
    simt::Vector16 next_input = simt::load16(input);
    simt::Vector16 next_factor[kMaxHotFactors];
#pragma unroll
    for (int i = 0; i < kFactors; ++i) next_factor[i] = simt::load16(factor[i]);
#pragma unroll(kUnroll)
    for (;;) {
      const simt::Vector16 h = next_input;
      simt::Vector16 f[kMaxHotFactors];
#pragma unroll
      for (int i = 0; i < kFactors; ++i) f[i] = next_factor[i];
      advance_inputs(params);
      if (turns > 1) {
        next_input = simt::load16(input);
#pragma unroll
        for (int i = 0; i < kFactors; ++i) next_factor[i] = simt::load16(factor[i]);
      }
      Real values[kVector];
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        values[e] =
            math::gelu<Precision, kForm, kOrder>(simt::widen_element<Real, T>(h, e) + bias[e]);
#pragma unroll
        for (int i = 0; i < kFactors; ++i) {
          values[e] = values[e] * simt::widen_element<Real, T>(f[i], e);
        }
      }
      if (!kSums || output != nullptr) {
        simt::store16(output, simt::round_to_words<T>(values));
        advance(output, params.output_step);
      }
      if (kSums) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum[e] = sum[e] + values[e];
      }
      if (--turns == 0) return;
    }
  }

  // The elements of one row that exist, one by one: no unrolling, this is rare.
  template <bool kSums>
  BRIDGE_DEVICE void visit_edge(const Params& params, int64_t position, Real (&sum)[kVector]) {
#pragma unroll 1
    for (int e = 0; e < kVector; ++e) {
      if (position + e < 0 || position + e >= params.span) continue;
      // bias[e] and sum[e] without an index at run time, which would move them out of registers.
      Real h = bias[0];
#pragma unroll
      for (int i = 1; i < kVector; ++i) h = i == e ? bias[i] : h;
      h = simt::widen<Real>(input[e]) + h;
      Real value = math::gelu<Precision, kForm, kOrder>(h);
#pragma unroll
      for (int i = 0; i < kFactors; ++i) value = value * simt::widen<Real>(factor[i][e]);
      if (!kSums || output != nullptr) output[e] = math::round_to<T>(value);
      if (kSums) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[i] = i == e ? sum[i] + value : sum[i];
      }
    }
    advance_inputs(params);
    if (!kSums || output != nullptr) advance(output, params.output_step);
  }

  template <bool kSums>
  static BRIDGE_DEVICE void walk(const Params& params, int64_t batch, int64_t position, int64_t row,
                                 int turns, Real (&sum)[kVector]) {
    if (turns <= 0) return;
    HotOperands operands(params, batch, row, position);
    columns::walk<kSums>(params, operands, position, row, turns, sum);
  }
};

// Every call: dtypes, form, order and factors are read at run time, one element per thread.
template <class Precision>
struct AnyOperands {
  using Params = bias_gelu::Params;
  using Real = typename Precision::real;
  static constexpr int kMinBlocks = 2;
  static constexpr int kVector = 1;

  template <GeluForm kForm>
  static BRIDGE_DEVICE Real gelu(int order, Real h) {
    switch (order) {
      case 0:
        return math::gelu<Precision, kForm, 0>(h);
      case 1:
        return math::gelu<Precision, kForm, 1>(h);
      case 2:
        return math::gelu<Precision, kForm, 2>(h);
      default:
        return math::gelu_high_order<Precision, kForm>(h, order);
    }
  }

  static BRIDGE_DEVICE Real gelu(int form, int order, Real h) {
    switch (form) {
      case BRIDGE_GELU_TANH:
        return gelu<GeluForm::tanh>(order, h);
      case BRIDGE_GELU_ERF:
        return gelu<GeluForm::erf>(order, h);
      default:
        return gelu<GeluForm::sigmoid>(order, h);
    }
  }

  static BRIDGE_DEVICE Real load_pair(const bridge_pair& pair, int64_t batch, int64_t row,
                                      int64_t column) {
    const bridge_array& full = pair.full;
    const int64_t row_index = batch * pair.row.batch_stride + column;
    if (full.data == nullptr) return load_real<Real>(pair.row, row_index);
    const Real value =
        load_real<Real>(full, batch * full.batch_stride + row * full.row_stride + column);
    return pair.row.data == nullptr ? value : value + load_real<Real>(pair.row, row_index);
  }

  template <bool kSums>
  static BRIDGE_DEVICE void walk(const Params& params, int64_t batch, int64_t column, int64_t row,
                                 int turns, Real (&sum)[1]) {
    const bridge_bias_gelu& call = params.call;
    for (; turns > 0; --turns, row += params.row_step) {
      Real value = gelu(call.form, call.order, load_pair(call.input, batch, row, column));
      for (int i = 0; i < call.factors; ++i) {
        value = value * load_pair(call.factor[i], batch, row, column);
      }
      const bridge_array& full = call.output.full;
      if (full.data != nullptr) {
        store_real(full, batch * full.batch_stride + row * full.row_stride + column, value);
      }
      if (kSums) sum[0] = sum[0] + value;
    }
  }
};

}  // namespace bridge::bias_gelu

#endif  // BRIDGE_OPS_BIAS_GELU_BIAS_GELU_OPERANDS_CUH_
