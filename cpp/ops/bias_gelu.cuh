// The kernels of bias_gelu, against the block and warp interface of cuda/simt.h. bias_gelu.cu
// chooses between them and lays the call under their threads.
//
// A thread keeps to its columns and walks down rows, so that the bias stays in its registers. Where
// an operand is absent its place is taken by -0.0, the exact identity of IEEE addition: one code
// path serves calls with and without bias.
#ifndef BRIDGE_OPS_BIAS_GELU_CUH_
#define BRIDGE_OPS_BIAS_GELU_CUH_

#include "bias_gelu.h"
#include "cuda/vector.h"
#include "math/convert.h"
#include "math/gelu.h"

namespace bridge::bias_gelu {

using math::GeluForm;
using simt::Pack;
using simt::Span;

constexpr int kThreads = 256;
// Two blocks leave 128 registers to a thread: with less ptxas spills the float64 kernels.
constexpr int kMinBlocks = 2;

struct Params {
  // As the kernel walks it: rows, cols and strides may differ from the caller's (see plan()).
  bridge_bias_gelu call;
  Span span;
  int64_t row_extent;  // by how much positions advance with a row: 0 where each row has its span
  int64_t slots;       // vectors in a row
  int64_t shift;       // vectors start this many elements before the row, where addresses align
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

// Division by a size that mostly fits in 32 bits, where it takes a tenth of the instructions.
BRIDGE_DEVICE int64_t divide(int64_t dividend, int64_t divisor) {
  if (((static_cast<uint64_t>(dividend) | static_cast<uint64_t>(divisor)) >> 32) == 0) {
    return static_cast<uint32_t>(dividend) / static_cast<uint32_t>(divisor);
  }
  return dividend / divisor;
}

// ((v0+v1)+(v2+v3))+((v4+v5)+(v6+v7)), and so on for any power of two.
template <int kCount, class Real>
BRIDGE_DEVICE Real tree_sum(Real (&values)[kCount]) {
#pragma unroll
  for (int width = 1; width < kCount; width *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * width) values[i] = values[i] + values[i + width];
  }
  return values[0];
}

// The hot calls: every full operand of one dtype whose arithmetic is native to it, every factor one
// full operand.
template <class T, class Precision, GeluForm kForm, int kOrder, int kFactors>
struct TypedOperands {
  using Real = typename Precision::real;
  static constexpr int kVector = Pack<T>::kCount;

  struct Fetched {
    Pack<T> input;
    Pack<T> factor[kFactors > 0 ? kFactors : 1];
  };

  static BRIDGE_DEVICE T* first(const bridge_array& array, int64_t batch, int64_t row,
                                int64_t position) {
    return static_cast<T*>(array.data) + batch * array.batch_stride + row * array.row_stride +
           position;
  }

  // The bias repeats every call.cols positions; the positions before 0 and behind the end of the
  // span get some element of it.
  static BRIDGE_DEVICE void load_bias(const Params& params, int64_t batch, int64_t position,
                                      Real (&bias)[kVector]) {
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

  // Rows row, row + step, … before end, at `position` in the first of them.
  template <bool kSums>
  static BRIDGE_DEVICE void walk(const Params& params, int64_t batch, int64_t position, int64_t row,
                                 int64_t end, int64_t step, Real (&sum)[kVector]) {
    if (row >= end) return;
    Real bias[kVector];
    load_bias(params, batch, position, bias);
    const bridge_bias_gelu& call = params.call;
    const T* input = first(call.input.full, batch, row, position);
    const int64_t input_step = step * call.input.full.row_stride;
    const T* factor[kFactors > 0 ? kFactors : 1];
    int64_t factor_step[kFactors > 0 ? kFactors : 1];
#pragma unroll
    for (int i = 0; i < kFactors; ++i) {
      factor[i] = first(call.factor[i].full, batch, row, position);
      factor_step[i] = step * call.factor[i].full.row_stride;
    }
    const bool has_output = !kSums || call.output.full.data != nullptr;
    T* output = has_output ? first(call.output.full, batch, row, position) : nullptr;
    const int64_t output_step = step * call.output.full.row_stride;
    const int64_t advance = step * params.row_extent;
    position += row * params.row_extent;

    Fetched next;
    auto fetch = [&] {
      next.input = simt::load_pack(input, position, params.span);
#pragma unroll
      for (int i = 0; i < kFactors; ++i) {
        next.factor[i] = simt::load_pack(factor[i], position, params.span);
      }
    };
    fetch();
    for (;;) {
      // The next row is on its way while this one is computed. In-place calls allow it: a row's
      // elements are read and written by one thread, and no two rows share memory.
      const Fetched current = next;
      const int64_t here = position;
      row += step;
      const bool more = row < end;
      if (more) {
        position += advance;
        input += input_step;
#pragma unroll
        for (int i = 0; i < kFactors; ++i) factor[i] += factor_step[i];
        fetch();
      }
      Real values[kVector];
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const Real h = simt::widen<Real>(current.input.element[e]) + bias[e];
        values[e] = math::gelu<Precision, kForm, kOrder>(h);
#pragma unroll
        for (int i = 0; i < kFactors; ++i) {
          values[e] = values[e] * simt::widen<Real>(current.factor[i].element[e]);
        }
      }
      if (has_output) {
        simt::store_pack(output, here, params.span, simt::round_pack<T>(values));
        output += output_step;
      }
      if (kSums) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum[e] = sum[e] + values[e];
      }
      if (!more) return;
    }
  }
};

// Every call: dtypes, form, order and factors are read at run time, one element per thread.
template <class Precision>
struct AnyOperands {
  using Real = typename Precision::real;
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
                                 int64_t end, int64_t step, Real (&sum)[1]) {
    const bridge_bias_gelu& call = params.call;
    for (; row < end; row += step) {
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

// No column sums: threads side by side take the slots of a row, blocks interleave the rows.
template <class Operands>
struct ElementwiseKernel {
  using Params = bias_gelu::Params;
  static constexpr int kThreads = bias_gelu::kThreads;
  static constexpr int kMinBlocks = bias_gelu::kMinBlocks;

  static BRIDGE_DEVICE void run(const Params& params) {
    const int thread = simt::thread_index();
    const simt::Index block = simt::block_index();
    const simt::Index blocks = simt::block_count();
    const int64_t slot = (static_cast<int64_t>(block.x) << params.column_bits) +
                         (thread & ((1 << params.column_bits) - 1));
    if (slot >= params.slots) return;
    const int64_t rows_per_block = kThreads >> params.column_bits;
    const int64_t row = block.y * rows_per_block + (thread >> params.column_bits);
    const int64_t position = slot * Operands::kVector - params.shift;
    typename Operands::Real unused[Operands::kVector];
    for (int64_t batch = block.z; batch < params.call.batch; batch += blocks.z) {
      Operands::template walk<false>(params, batch, position, row, params.call.rows,
                                     blocks.y * rows_per_block, unused);
    }
  }
};

// With column sums: a thread is one lane of a chunk; the block adds its lanes through shared memory.
template <class Operands>
struct ChunkKernel {
  using Params = bias_gelu::Params;
  using Real = typename Operands::Real;
  static constexpr int kThreads = bias_gelu::kThreads;
  static constexpr int kMinBlocks = bias_gelu::kMinBlocks;
  static constexpr int kVector = Operands::kVector;
  // Writes are one element of each thread at a time, reads one thread's elements side by side: the
  // padding spreads both over the banks.
  static constexpr int kPitch = kThreads + 32 / kVector;

  static BRIDGE_DEVICE void run(const Params& params) {
    const int columns = 1 << params.column_bits;
    const int lanes = 1 << params.lane_bits;
    const int groups_per_block = kThreads >> (params.column_bits + params.lane_bits);
    const int thread = simt::thread_index();
    const int lane = (thread >> params.column_bits) & (lanes - 1);
    const int64_t first_slot = static_cast<int64_t>(simt::block_index().x) << params.column_bits;
    const int64_t slot = first_slot + (thread & (columns - 1));
    const int64_t groups = params.call.batch * params.chunks;
    const int64_t step = static_cast<int64_t>(simt::block_count().y) * groups_per_block;
    for (int64_t first = static_cast<int64_t>(simt::block_index().y) * groups_per_block;
         first < groups; first += step) {
      Real sum[kVector];
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum[e] = Real(-0.0);
      const int64_t group = first + (thread >> (params.column_bits + params.lane_bits));
      if (group < groups && slot < params.slots) {
        const int64_t batch = divide(group, params.chunks);
        const int64_t row = (group - batch * params.chunks) * kChunkRows + lane * kLaneRows;
        const int64_t end = row + kLaneRows < params.call.rows ? row + kLaneRows : params.call.rows;
        Operands::template walk<true>(params, batch, slot * kVector - params.shift, row, end, 1,
                                      sum);
      }
      if (params.call.output.row.data != nullptr) {
        add_lanes(params, sum, first, first_slot * kVector - params.shift);
      }
    }
  }

  static BRIDGE_DEVICE void add_lanes(const Params& params, const Real (&sum)[kVector],
                                      int64_t first_group, int64_t first_column) {
    Real* lane_sums = simt::shared_array<Real, kVector * kPitch>();
    const int thread = simt::thread_index();
    simt::sync();  // the previous turn's sums have been read
#pragma unroll
    for (int e = 0; e < kVector; ++e) lane_sums[e * kPitch + thread] = sum[e];
    simt::sync();
    const int column_bits = params.column_bits;
    const int columns = kVector << column_bits;
    const int chunk_columns = (kThreads * kVector) >> params.lane_bits;
    for (int i = thread; i < chunk_columns; i += kThreads) {
      const int group = i / columns;
      const int element = i % kVector;
      const int first = (group << (column_bits + params.lane_bits)) + (i % columns) / kVector;
      Real values[kLanes];
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const bool present = lane < (1 << params.lane_bits);
        values[lane] = Real(-0.0);
        if (present) values[lane] = lane_sums[element * kPitch + first + (lane << column_bits)];
      }
      const Real total = tree_sum(values);
      const int64_t column = first_column + i % columns;
      const bool exists = first_group + group < params.call.batch * params.chunks;
      if (!exists || column < 0 || column >= params.call.cols) continue;
      if (params.partials != nullptr) {
        static_cast<Real*>(
            params.partials)[(first_group + group) * params.call.cols + column] = total;
      } else {
        const bridge_array& row = params.call.output.row;
        store_real(row, (first_group + group) * row.batch_stride + column, total);
      }
    }
  }
};

// One level of the tree over the chunks: each block replaces 64 neighbours by their sum.
constexpr int kTreeColumns = 32;
constexpr int kTreeValues = 8;
constexpr int64_t kTreeWidth = kTreeValues * (kThreads / kTreeColumns);

struct TreeParams {
  int64_t batch;
  int64_t count;  // per batch; 0 where there are no rows: the sum is then +0
  int64_t cols;
  const void* values;  // [batch, count, cols]
  void* sums;          // [batch, ceil(count / 64), cols], or NULL at the root: then row
  bridge_array row;
};

template <class Real>
struct TreeKernel {
  using Params = TreeParams;
  static constexpr int kThreads = bias_gelu::kThreads;
  static constexpr int kMinBlocks = bias_gelu::kMinBlocks;
  static constexpr int kGroups = kThreads / kTreeColumns;

  static BRIDGE_DEVICE void run(const TreeParams& params) {
    Real* shared = simt::shared_array<Real, kThreads>();
    const int thread = simt::thread_index();
    const int64_t column =
        static_cast<int64_t>(simt::block_index().x) * kTreeColumns + thread % kTreeColumns;
    const bool in_row = column < params.cols;
    const int64_t nodes = params.count > 0 ? (params.count + kTreeWidth - 1) / kTreeWidth : 1;
    for (int64_t node = simt::block_index().y; node < params.batch * nodes;
         node += simt::block_count().y) {
      const int64_t batch = divide(node, nodes);
      const int64_t first =
          (node - batch * nodes) * kTreeWidth + (thread / kTreeColumns) * kTreeValues;
      Real values[kTreeValues];
#pragma unroll
      for (int i = 0; i < kTreeValues; ++i) {
        values[i] = Real(-0.0);
        if (in_row && first + i < params.count) {
          values[i] = static_cast<const Real*>(
              params.values)[(batch * params.count + first + i) * params.cols + column];
        }
      }
      simt::sync();  // the previous turn's sums have been read
      shared[thread] = tree_sum(values);
      simt::sync();
      if (thread >= kTreeColumns || !in_row) continue;
      Real groups[kGroups];
#pragma unroll
      for (int i = 0; i < kGroups; ++i) groups[i] = shared[i * kTreeColumns + thread];
      const Real total = params.count > 0 ? tree_sum(groups) : Real(0);
      if (params.sums != nullptr) {
        static_cast<Real*>(params.sums)[node * params.cols + column] = total;
      } else {
        store_real(params.row, batch * params.row.batch_stride + column, total);
      }
    }
  }
};

}  // namespace bridge::bias_gelu

#endif  // BRIDGE_OPS_BIAS_GELU_CUH_
