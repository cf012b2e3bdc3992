// How a thread of the bias_gelu kernels walks down its rows: loads, evaluates, stores, adds up. A
// thread keeps to its columns, so that the bias stays in its registers. Where there is no bias its
// place is taken by -0.0, the exact identity of IEEE addition: one code path serves both.
#ifndef BRIDGE_OPS_BIAS_GELU_OPERANDS_CUH_
#define BRIDGE_OPS_BIAS_GELU_OPERANDS_CUH_

#include <type_traits>

#include "bias_gelu.h"
#include "cuda/division.h"
#include "cuda/vector.h"
#include "math/convert.h"
#include "math/gelu.h"

namespace bridge::bias_gelu {

using math::GeluForm;
using simt::divide;
using simt::Pack;

constexpr int kThreads = 256;

constexpr int kMaxHotFactors = 2;

struct Params {
  // As the kernel walks it: rows, cols and strides may differ from the caller's (see flatten()).
  bridge_bias_gelu call;

  // A vector is kVector adjacent columns of a row, a slot the place of one. Elements have positions
  // in the span that their row belongs to, and exist where 0 <= position < span. Vectors lie at
  // 16-byte boundaries: the first starts `shift` elements before the row. Those at positions p with
  // 0 <= p < whole have all their elements.
  int64_t slots;
  int64_t shift;
  int64_t span;
  int64_t whole;

  int64_t row_positions;  // how far positions advance with a row: 0 where each row is a span

  // What one step of a walk adds: rows, and bytes to the addresses.
  int64_t row_step;
  int64_t input_step;
  int64_t factor_step[kMaxHotFactors];
  int64_t output_step;

  // A block is 2^column_bits slots wide; the rest of its threads are lanes (of 16 rows in a chunk)
  // and then chunks, or rows in the elementwise kernels.
  int column_bits;
  int lane_bits;
  int64_t chunks;  // of a batch
  void* partials;  // [batch, chunks, cols] in the arithmetic type; NULL where chunks is 1
};

// Element types by their bridge_dtype, for run-time dispatch.
template <class Real, class T>
BRIDGE_DEVICE Real load_as(const void* data, int64_t index) {
  return simt::widen<Real>(static_cast<const T*>(data)[index]);
}

template <class Real>
BRIDGE_DEVICE Real load_real(const bridge_array& array, int64_t index) {
  switch (array.dtype) {
    case BRIDGE_FLOAT16:
      return load_as<Real, math::float16>(array.data, index);
    case BRIDGE_BFLOAT16:
      return load_as<Real, math::bfloat16>(array.data, index);
    case BRIDGE_FLOAT32:
      return load_as<Real, float>(array.data, index);
    default:
      return load_as<Real, double>(array.data, index);
  }
}

template <class Real>
BRIDGE_DEVICE void store_real(const bridge_array& array, int64_t index, Real value) {
  switch (array.dtype) {
    case BRIDGE_FLOAT16:
      static_cast<math::float16*>(array.data)[index] = math::round_to<math::float16>(value);
      break;
    case BRIDGE_BFLOAT16:
      static_cast<math::bfloat16*>(array.data)[index] = math::round_to<math::bfloat16>(value);
      break;
    case BRIDGE_FLOAT32:
      static_cast<float*>(array.data)[index] = math::round_to<float>(value);
      break;
    default:
      static_cast<double*>(array.data)[index] = math::round_to<double>(value);
  }
}

// The hot calls: every full operand of one dtype whose arithmetic is native to it, every factor one
// full operand, all of them alike towards 16-byte boundaries.
template <class T, class Precision, GeluForm kForm, int kOrder, int kFactors>
struct HotOperands {
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
    input = first(call.input.full, batch, row, position);
#pragma unroll
    for (int i = 0; i < kFactors; ++i) {
      factor[i] = first(call.factor[i].full, batch, row, position);
    }
    output =
        call.output.full.data == nullptr ? nullptr : first(call.output.full, batch, row, position);
    load_bias(params, batch, position);
  }

  static BRIDGE_DEVICE T* first(const bridge_array& array, int64_t batch, int64_t row,
                                int64_t position) {
    return static_cast<T*>(array.data) + batch * array.batch_stride + row * array.row_stride +
           position;
  }

  // The bias repeats every call.cols positions; the positions before 0 and behind the end of the
  // span get some element of it.
  BRIDGE_DEVICE void load_bias(const Params& params, int64_t batch, int64_t position) {
    const bridge_array& row = params.call.input.row;
    if (row.data == nullptr) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) bias[e] = Real(-0.0);
      return;
    }
    const int64_t cols = params.call.cols;
    int64_t column = position;
    if (column < 0) column += divide(params.shift + cols - 1, cols) * cols;
    column -= divide(column, cols) * cols;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      bias[e] = load_real<Real>(row, batch * row.batch_stride + column);
      if (++column == cols) column = 0;
    }
  }

  template <class U>
  static BRIDGE_DEVICE void advance(U*& pointer, int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<U>, const char, char>;
    pointer = reinterpret_cast<U*>(reinterpret_cast<Byte*>(pointer) + bytes);
  }

  BRIDGE_DEVICE void advance_inputs(const Params& params) {
    advance(input, params.input_step);
#pragma unroll
    for (int i = 0; i < kFactors; ++i) advance(factor[i], params.factor_step[i]);
  }

  // Whole vectors, `turns` of them. The next row is on its way while one is computed. In-place
  // calls allow it: a row's elements are read and written by one thread, and no two rows share
  // memory.
  template <bool kSums>
  BRIDGE_DEVICE void walk_whole(const Params& params, int turns, Real (&sum)[kVector]) {
    // In words: 16-bit elements in registers of their own would be packed and unpacked twice.
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

  // `turns` rows from `row` on, at `position` in the first of its span's rows.
  template <bool kSums>
  static BRIDGE_DEVICE void walk(const Params& params, int64_t batch, int64_t position, int64_t row,
                                 int turns, Real (&sum)[kVector]) {
    if (turns <= 0) return;
    HotOperands operands(params, batch, row, position);
    position += row * params.row_positions;
    const int64_t position_step = params.row_step * params.row_positions;
    // Rows of one span: the first vector may begin before it and the last end behind it. A span for
    // each row: all of the rows are alike.
    while (turns > 0) {
      const int64_t last = position + (turns - 1) * position_step;
      int whole_turns = turns - (is_whole(params, last) ? 0 : 1);
      if (!is_whole(params, position)) whole_turns = 0;
      if (whole_turns > 0) {
        operands.template walk_whole<kSums>(params, whole_turns, sum);
        position += whole_turns * position_step;
        turns -= whole_turns;
      } else {
        operands.template visit_edge<kSums>(params, position, sum);
        position += position_step;
        --turns;
      }
    }
  }

  static BRIDGE_DEVICE bool is_whole(const Params& params, int64_t position) {
    return static_cast<uint64_t>(position) < static_cast<uint64_t>(params.whole);
  }
};

// Every call: dtypes, form, order and factors are read at run time, one element per thread.
template <class Precision>
struct AnyOperands {
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

#endif  // BRIDGE_OPS_BIAS_GELU_OPERANDS_CUH_
