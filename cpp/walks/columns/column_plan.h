// How a call on arrays of [batch, rows, cols] is laid under the threads of the kernels in
// column_walk.cuh. Host code. Params has besides its Walk
//   call                  the op's call, with an input pair
//   for_each_full(visit)  visit(array, step) for the full arrays, absent ones too, and where a walk
//                         keeps the bytes from one of its rows to the next (NULL: nowhere)
#ifndef BRIDGE_WALKS_COLUMNS_COLUMN_PLAN_H_
#define BRIDGE_WALKS_COLUMNS_COLUMN_PLAN_H_

#include <bridge/bridge.h>

#include "cuda/op_entry.h"
#include "walks/array_checks.h"
#include "walks/columns/column_sum_tree.h"
#include "walks/columns/column_sums_cuda.h"
#include "walks/columns/column_walk.cuh"

namespace bridge::columns {

template <class Params>
struct Kernel {
  const char* (*launch)(simt::Grid, size_t, void*, const Params&);
  const char* (*load)();
  int vector;  // elements of a slot
};

template <template <class> class K, class Operands>
constexpr Kernel<typename Operands::Params> make_kernel() {
  return {simt::launch<K<Operands>>, simt::load<K<Operands>>, Operands::kVector};
}

// Enough blocks for four waves of four on the 132 multiprocessors of a large GPU; beyond that a
// thread walks more rows, at most kMaxWalk, and so loads its bias less often.
constexpr int64_t kTargetBlocks = 4 * 4 * 132;
constexpr int64_t kMaxWalk = 32;

// The smallest power of two that is at least `value`, or `limit`, as an exponent.
inline int bits_for(int64_t value, int limit) {
  int bits = 0;
  while (bits < limit && (int64_t{1} << bits) < value) ++bits;
  return bits;
}

constexpr int kThreadBits = 8;
static_assert(1 << kThreadBits == kThreads);

// Calls visit(array) for the full arrays that are present.
template <class Params, class Visit>
void for_each_full(Params& params, const Visit& visit) {
  params.for_each_full([&](auto& full, int64_t*) {
    if (is_present(full)) visit(full);
  });
}

// Vectors are possible where all full operands lie alike towards 16-byte boundaries, in every row
// and batch. Elsewhere, and in spans shorter than a vector, `whole` is 0.
template <class Params>
void align(Params& params, int vector) {
  auto& call = params.call;
  const int64_t bytes = dtype_bytes(call.input.full.dtype);
  const uintptr_t offset = reinterpret_cast<uintptr_t>(call.input.full.data) % 16;
  bool alike = vector > 1 && params.span >= vector;
  for_each_full(params, [&](const bridge_array& full) {
    alike &= reinterpret_cast<uintptr_t>(full.data) % 16 == offset;
    alike &= call.rows == 1 || full.row_stride % vector == 0;
    alike &= call.batch == 1 || full.batch_stride % vector == 0;
  });
  params.shift = alike ? static_cast<int64_t>(offset) / bytes : 0;
  params.whole = alike ? params.span - vector + 1 : 0;
}

// The steps of a walk from one row to the next but `rows` - 1.
template <class Params>
void set_steps(Params& params, int64_t rows) {
  params.row_step = rows;
  params.for_each_full([&](const bridge_array& full, int64_t* step) {
    if (step != nullptr) *step = rows * full.row_stride * dtype_bytes(full.dtype);
  });
}

inline int64_t greatest_common_divisor(int64_t a, int64_t b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

// How wide to lay contiguous rows of `cols` elements: a whole number of rows and of vectors, so
// that a thread meets the same columns in every wide row, and slots that fill their blocks.
inline int64_t wide_row(int64_t elements, int64_t cols, int vector) {
  const int64_t rows = vector / greatest_common_divisor(cols, vector);
  if (elements / cols < rows) return ceil_divide(elements, vector) * vector;
  const int64_t slots = cols * rows / vector;
  int64_t best = 1;
  double best_use = 0;
  for (int64_t times = slots < kThreads ? kThreads / slots : 1; times == 1 || times * slots <= 4096;
       ++times) {
    const double blocks = static_cast<double>(ceil_divide(times * slots, kThreads));
    const double use = static_cast<double>(times * slots) / (blocks * kThreads);
    if (use <= best_use) continue;
    best = times;
    best_use = use;
    if (use >= 0.9) break;
  }
  return best * slots * vector;
}

// Rows without gaps are cut anew into wide rows: narrow matrices then fill vectors and blocks, and
// rows whose length is no multiple of a vector are aligned all the same. Batches become rows where
// they are all alike to the op, rows are cut where the op may go on from one to the next.
template <class Params>
void flatten(Params& params, int vector, bool batches_are_alike, bool rows_go_on) {
  auto& call = params.call;
  const bool bias = is_present(call.input.row);
  const bool batched_bias = bias && call.input.row.batch_stride != 0;
  bool rows_dense = rows_go_on, batches_dense = !batched_bias && batches_are_alike;
  for_each_full(params, [&](const bridge_array& full) {
    rows_dense &= call.rows == 1 || full.row_stride == call.cols;
    batches_dense &= call.batch == 1 || full.batch_stride == call.rows * call.cols;
  });
  if (batches_dense && rows_dense) {
    call.rows *= call.batch;
    call.batch = 1;
  } else if (call.rows == 1 && !batched_bias && batches_are_alike) {
    for_each_full(params, [](bridge_array& full) { full.row_stride = full.batch_stride; });
    call.rows = call.batch;
    call.batch = 1;
    rows_dense = false;
  }
  params.span = call.cols;
  params.row_positions = 0;
  align(params, vector);
  if (!rows_dense || (bias && call.rows == 1)) return;
  const int64_t elements = call.rows * call.cols;
  if (!bias) call.cols = vector * kThreads < elements ? vector * kThreads : elements;
  const int64_t width = wide_row(elements, call.cols, vector);
  params.span = elements;
  params.row_positions = width;
  for_each_full(params, [&](bridge_array& full) { full.row_stride = width; });
  align(params, vector);
  call.rows = ceil_divide(elements + params.shift, width);
}

template <class Params>
simt::Grid plan_elementwise(Params& params, int vector, bool batches_are_alike, bool rows_go_on) {
  flatten(params, vector, batches_are_alike, rows_go_on);
  const auto& call = params.call;
  const int64_t width = params.row_positions != 0 ? params.row_positions : call.cols + params.shift;
  params.slots = ceil_divide(width, vector);
  params.column_bits = bits_for(params.slots, kThreadBits);
  simt::Grid grid;
  grid.x = ceil_divide(params.slots, int64_t{1} << params.column_bits);
  grid.z = call.batch < simt::kMaxGridYZ ? call.batch : simt::kMaxGridYZ;
  const int64_t block_rows = kThreads >> params.column_bits;
  const int64_t row_blocks = ceil_divide(call.rows, block_rows);
  const int64_t wanted = ceil_divide(kTargetBlocks, grid.x * grid.z);
  grid.y = ceil_divide(row_blocks, kMaxWalk);
  if (grid.y < wanted) grid.y = wanted < row_blocks ? wanted : row_blocks;
  if (grid.y > simt::kMaxGridYZ) grid.y = simt::kMaxGridYZ;
  set_steps(params, grid.y * block_rows);
  return grid;
}

template <class Params>
simt::Grid plan_chunks(Params& params, int vector) {
  const auto& call = params.call;
  params.span = call.cols;
  align(params, vector);
  set_steps(params, 1);
  params.slots = ceil_divide(call.cols + params.shift, vector);
  params.chunks = chunk_count(call.rows);
  // No more lanes than there are rows for, no more columns than there are slots: what is left of
  // the block takes further chunks and batches.
  params.lane_bits = bits_for(ceil_divide(call.rows, kLaneRows), 3);
  params.column_bits = bits_for(params.slots, kThreadBits - params.lane_bits);
  const int64_t groups_per_block = kThreads >> (params.column_bits + params.lane_bits);
  simt::Grid grid;
  grid.x = ceil_divide(params.slots, int64_t{1} << params.column_bits);
  grid.y = ceil_divide(call.batch * params.chunks, groups_per_block);
  if (grid.y > simt::kMaxGridYZ) grid.y = simt::kMaxGridYZ;
  return grid;
}

// What the launch of a call goes by.
template <class Params>
struct Choice {
  const Kernel<Params>* hot;  // compiled for this very kind of call, or NULL
  const Kernel<Params>* any;
  bool is_double;
  bool batches_are_alike;  // as flatten() takes them
  bool rows_go_on;
};

// finish(params) sets what the op has in them besides its call; then the kernel is enqueued, and
// the tree of its column sums. NULL or what went wrong.
template <class Params, class Call, class Finish>
const char* enqueue(const Call& call, const Choice<Params>& choice, void* workspace, void* stream,
                    const Finish& finish) {
  const bool sums = is_present(call.output.row);
  auto add_chunks = [&] {
    return enqueue_tree(check::sizes_of(call), choice.is_double, call.output.row, workspace,
                        stream);
  };
  if (call.rows == 0) return sums ? add_chunks() : nullptr;
  Params params{};
  simt::Grid grid;
  const Kernel<Params>* kernel = choice.hot;
  if (kernel != nullptr) {
    params.call = call;
    grid = sums ? plan_chunks(params, kernel->vector)
                : plan_elementwise(params, kernel->vector, choice.batches_are_alike,
                                   choice.rows_go_on);
    if (params.whole == 0) kernel = nullptr;
  }
  if (kernel == nullptr) {
    kernel = choice.any;
    params = {};
    params.call = call;
    grid = plan_chunks(params, kernel->vector);
  }
  finish(params);
  const bool tree = sums && params.chunks > 1;
  params.partials = tree ? workspace : nullptr;
  if (const char* error = kernel->launch(grid, 0, stream, params)) return error;
  return tree ? add_chunks() : nullptr;
}

// The C functions of an op, but for what is given.
template <class Call, bool (*is_double)(const Call&)>
constexpr cuda::OpEntry<Call> op_entry(const char* name,
                                       decltype(cuda::OpEntry<Call>::validate) validate,
                                       decltype(cuda::OpEntry<Call>::enqueue) enqueue) {
  return {name,
          validate,
          [](const Call& call) { return call.batch == 0 || call.cols == 0; },
          [](const Call& call) {
            return is_present(call.output.row)
                       ? workspace_bytes(check::sizes_of(call), is_double(call))
                       : 0;
          },
          [](const Call& call) -> const void* {
            return is_present(call.output.full) ? call.output.full.data : call.output.row.data;
          },
          enqueue};
}

}  // namespace bridge::columns

#endif  // BRIDGE_WALKS_COLUMNS_COLUMN_PLAN_H_
