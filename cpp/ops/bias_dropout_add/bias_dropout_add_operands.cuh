// What a thread of the bias_dropout_add kernels does in each row: loads, draws, evaluates, stores,
// adds up.
#ifndef BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_OPERANDS_CUH_
#define BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_OPERANDS_CUH_

#include "cuda/vector.h"
#include "math/convert.h"
#include "math/philox.h"
#include "ops/bias_dropout_add/bias_dropout_add.h"
#include "walks/columns/column_walk.cuh"

namespace bridge::bias_dropout_add {

using columns::advance;
using columns::first;
using columns::load_real;
using columns::store_real;
using simt::Pack;

struct Params : columns::Walk {
  bridge_bias_dropout_add call;
  int64_t input_step;
  int64_t residual_step;
  int64_t output_step;
  uint64_t index_row;   // from the index of an element to that of the one below
  uint64_t index_step;  // the same for one step of a walk

  template <class Visit>
  void for_each_full(const Visit& visit) {
    visit(call.input.full, &input_step);
    visit(call.residual, &residual_step);
    visit(call.output.full, &output_step);
  }
};

// Where the elements of one batch stand in the random sequence. The integers lie in device memory
// and are read by every launch: a captured graph draws anew when they change.
struct Sequence {
  uint64_t seed;
  uint64_t offset;
  uint64_t start;

  BRIDGE_DEVICE Sequence(const bridge_bias_dropout_add& call, int64_t batch)
      : seed(at(call.seed, batch)), offset(at(call.offset, batch)), start(at(call.start, batch)) {}

  static BRIDGE_DEVICE uint64_t at(const bridge_integers& integers, int64_t batch) {
    return integers.data == nullptr
               ? 0
               : static_cast<uint64_t>(integers.data[batch * integers.batch_stride]);
  }

  BRIDGE_DEVICE uint32_t word(uint64_t index) const {
    const math::Philox drawn = math::philox(seed, offset, index / 4);
    // No index is taken at run time, which would move the words out of registers.
    const uint32_t low = index % 2 != 0 ? drawn.words[1] : drawn.words[0];
    const uint32_t high = index % 2 != 0 ? drawn.words[3] : drawn.words[2];
    return index % 4 >= 2 ? high : low;
  }

  // Of elements one after the other, the first at a whole counter, or at half of one where there
  // are but two.
  template <int kCount>
  BRIDGE_DEVICE void words(uint64_t index, uint32_t (&words)[kCount]) const {
    if constexpr (kCount < 4) {
      const math::Philox drawn = math::philox(seed, offset, index / 4);
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        words[e] = index % 4 != 0 ? drawn.words[e + kCount] : drawn.words[e];
      }
    } else {
#pragma unroll
      for (int e = 0; e < kCount; e += 4) {
        const math::Philox drawn =
            math::philox(seed, offset, (index + static_cast<uint64_t>(e)) / 4);
#pragma unroll
        for (int w = 0; w < 4; ++w) words[e + w] = drawn.words[w];
      }
    }
  }

  // The same from anywhere on: the words of all the counters that are touched, moved down by one
  // and by two places.
  template <int kCount>
  BRIDGE_DEVICE void words_from_anywhere(uint64_t index, uint32_t (&words)[kCount]) const {
    constexpr int kDrawn = (kCount + 6) / 4 * 4;
    uint32_t drawn[kDrawn];
    this->words(index & ~uint64_t{3}, drawn);
#pragma unroll
    for (int e = 0; e + 1 < kDrawn; ++e) drawn[e] = index % 2 != 0 ? drawn[e + 1] : drawn[e];
#pragma unroll
    for (int e = 0; e < kCount; ++e) words[e] = index % 4 >= 2 ? drawn[e + 2] : drawn[e];
  }
};

// +0 where an element is dropped, whatever the input holds. A choice, not a product: 0 times a NaN
// would be one.
template <class Real>
BRIDGE_DEVICE Real keep_or_drop(Real value, Real factor, uint32_t word, uint32_t threshold) {
  return word >= threshold ? value * factor : Real(0);
}

// What a kernel does besides dropping: a forward pass may add a residual, a backward pass add up.
enum class With { nothing, residual, sums };

// The hot calls: every full operand of one dtype whose arithmetic is native to it, all of them
// alike towards 16-byte boundaries.
template <class T, Keep kKeep, With kWith>
struct HotOperands {
  using Params = bias_dropout_add::Params;
  using Real = std::conditional_t<sizeof(T) == sizeof(double), double, float>;
  static constexpr int kVector = Pack<T>::kCount;
  static constexpr bool kDraws = kKeep == Keep::some;
  static constexpr bool kResidual = kWith == With::residual;
  // More blocks hide more of the memory's latency; each step leaves fewer registers to a thread.
  // These are the most that spill on none of sm_80, sm_90 and sm_100. Two turns in one loop body
  // save the instructions that only move the next row's words to their place; where words are drawn
  // they would cost a block.
  static constexpr int kMinBlocks =
      (kDraws ? 3 : 4) - (kWith == With::sums && sizeof(T) == 2 ? 1 : 0);
  static constexpr int kUnroll = kDraws ? 1 : 2;
  // Elements of a vector that share a counter, wherever the vector begins in the sequence at a
  // multiple of so many.
  static constexpr uint64_t kTogether = kVector < 4 ? kVector : 4;

  const T* input;
  const T* residual;
  T* output;
  Real bias[kVector];
  Sequence sequence;
  uint64_t index;

  BRIDGE_DEVICE HotOperands(const Params& params, int64_t batch, int64_t row, int64_t position)
      : sequence(params.call, batch) {
    const bridge_bias_dropout_add& call = params.call;
    input = first<T>(call.input.full, batch, row, position);
    residual = first<T>(call.residual, batch, row, position);
    output = first<T>(call.output.full, batch, row, position);
    columns::load_row(params, call.input.row, batch, position, bias);
    index = sequence.start + static_cast<uint64_t>(row) * params.index_row +
            static_cast<uint64_t>(position);
  }

  BRIDGE_DEVICE void advance_inputs(const Params& params) {
    advance(input, params.input_step);
    if (kResidual) advance(residual, params.residual_step);
  }

  // Walks `turns` whole vectors. The next row is loaded while one is computed. In-place calls allow
  // it: a row's elements are read and written by one thread, and no two rows share
  // memory.
  template <bool kSums, bool kAligned>
  BRIDGE_DEVICE void walk_vectors(const Params& params, int turns, Real (&sum)[kVector]) {
    const Real factor = static_cast<Real>(params.call.factor);
    const uint32_t threshold = static_cast<uint32_t>(params.call.threshold);
    simt::Vector16 next_input = simt::load16(input);
    simt::Vector16 next_residual;
    if (kResidual) next_residual = simt::load16(residual);
#pragma unroll(kUnroll)
    for (;;) {
      const simt::Vector16 x = next_input;
      const simt::Vector16 r = next_residual;
      advance_inputs(params);
      if (turns > 1) {
        next_input = simt::load16(input);
        if (kResidual) next_residual = simt::load16(residual);
      }
      uint32_t words[kVector];
      if constexpr (kDraws && kAligned) sequence.words(index, words);
      if constexpr (kDraws && !kAligned) sequence.words_from_anywhere(index, words);
      index += params.index_step;
      Real values[kVector];
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        values[e] = simt::widen_element<Real, T>(x, e) + bias[e];
        if constexpr (kDraws) values[e] = keep_or_drop(values[e], factor, words[e], threshold);
        if constexpr (kResidual) values[e] = simt::widen_element<Real, T>(r, e) + values[e];
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

  template <bool kSums>
  BRIDGE_DEVICE void walk_whole(const Params& params, int turns, Real (&sum)[kVector]) {
    if constexpr (kDraws) {
      if ((index | params.index_step) % kTogether != 0) {
        return walk_vectors<kSums, false>(params, turns, sum);
      }
    }
    walk_vectors<kSums, true>(params, turns, sum);
  }

  // The elements of one row that exist, one by one: no unrolling, this is rare.
  template <bool kSums>
  BRIDGE_DEVICE void visit_edge(const Params& params, int64_t position, Real (&sum)[kVector]) {
#pragma unroll 1
    for (int e = 0; e < kVector; ++e) {
      if (position + e < 0 || position + e >= params.span) continue;
      // bias[e] and sum[e] without an index at run time, which would move them out of registers.
      Real value = bias[0];
#pragma unroll
      for (int i = 1; i < kVector; ++i) value = i == e ? bias[i] : value;
      value = simt::widen<Real>(input[e]) + value;
      if constexpr (kDraws) {
        value = keep_or_drop(value, static_cast<Real>(params.call.factor),
                             sequence.word(index + static_cast<uint64_t>(e)),
                             static_cast<uint32_t>(params.call.threshold));
      }
      if constexpr (kResidual) value = simt::widen<Real>(residual[e]) + value;
      if (!kSums || output != nullptr) output[e] = math::round_to<T>(value);
      if (kSums) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[i] = i == e ? sum[i] + value : sum[i];
      }
    }
    index += params.index_step;
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

// Every call: dtypes and what is kept are read at run time, one element per thread.
template <class Value>
struct AnyOperands {
  using Params = bias_dropout_add::Params;
  using Real = Value;
  static constexpr int kMinBlocks = 2;
  static constexpr int kVector = 1;

  static BRIDGE_DEVICE Real load(const bridge_array& array, int64_t batch, int64_t row,
                                 int64_t column) {
    return load_real<Real>(array, batch * array.batch_stride + row * array.row_stride + column);
  }

  template <bool kSums>
  static BRIDGE_DEVICE void walk(const Params& params, int64_t batch, int64_t column, int64_t row,
                                 int turns, Real (&sum)[1]) {
    const bridge_bias_dropout_add& call = params.call;
    const bool draws = call.threshold > 0 && call.threshold < kKeepNone;
    const Sequence sequence(call, draws ? batch : 0);
    for (; turns > 0; --turns, row += params.row_step) {
      Real value = 0;
      if (call.threshold < kKeepNone) {
        value = load(call.input.full, batch, row, column);
        if (call.input.row.data != nullptr) value = value + load(call.input.row, batch, 0, column);
      }
      if (draws) {
        const uint64_t index = sequence.start + static_cast<uint64_t>(row) * params.index_row +
                               static_cast<uint64_t>(column);
        value = keep_or_drop(value, static_cast<Real>(call.factor), sequence.word(index),
                             static_cast<uint32_t>(call.threshold));
      }
      if (call.residual.data != nullptr) value = load(call.residual, batch, row, column) + value;
      const bridge_array& full = call.output.full;
      if (full.data != nullptr) {
        store_real(full, batch * full.batch_stride + row * full.row_stride + column, value);
      }
      if (kSums) sum[0] = sum[0] + value;
    }
  }
};

}  // namespace bridge::bias_dropout_add

#endif  // BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_OPERANDS_CUH_
