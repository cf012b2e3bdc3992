// bias_gelu on CUDA: chooses a kernel, lays the call under its threads and enqueues it.
#include "bias_gelu.cuh"

#include <bridge/bridge.h>

#include "bias_gelu_cuda.h"
#include "cuda/last_error.h"

namespace bridge::bias_gelu {
namespace {

// Enough blocks for four waves of four on the 132 multiprocessors of a large GPU; beyond that a
// thread walks more rows, at most kMaxWalk, and so loads its bias less often.
constexpr int64_t kTargetBlocks = 4 * 4 * 132;
constexpr int64_t kMaxWalk = 32;

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The smallest power of two that is at least `value`, or `limit`, as an exponent.
int bits_for(int64_t value, int limit) {
  int bits = 0;
  while (bits < limit && (int64_t{1} << bits) < value) ++bits;
  return bits;
}

constexpr int kThreadBits = 8;
static_assert(1 << kThreadBits == kThreads);

struct Kernel {
  const char* (*launch)(simt::Grid, size_t, void*, const Params&);
  const char* (*load)();
  int vector;  // elements of a slot
};

template <template <class> class K, class Operands>
constexpr Kernel make_kernel() {
  return {simt::launch<K<Operands>>, simt::load<K<Operands>>, Operands::kVector};
}

// The hot calls of one dtype and form: the forward pass, its derivatives of first and second order.
struct Hot {
  int order;
  int factors;
  bool sums;
};
constexpr Hot kHot[] = {{0, 0, false}, {1, 1, false}, {1, 1, true}, {2, 2, false}, {2, 2, true}};
constexpr int kHotCount = sizeof kHot / sizeof kHot[0];
constexpr int kForms = 3;
constexpr int kDtypes = 4;

struct HotKernels {
  Kernel kernel[kHotCount];
};

template <class T, class Precision, math::GeluForm kForm>
constexpr HotKernels hot_kernels() {
  return {{make_kernel<ElementwiseKernel, HotOperands<T, Precision, kForm, 0, 0>>(),
           make_kernel<ElementwiseKernel, HotOperands<T, Precision, kForm, 1, 1>>(),
           make_kernel<ChunkKernel, HotOperands<T, Precision, kForm, 1, 1>>(),
           make_kernel<ElementwiseKernel, HotOperands<T, Precision, kForm, 2, 2>>(),
           make_kernel<ChunkKernel, HotOperands<T, Precision, kForm, 2, 2>>()}};
}

template <class T, class Precision>
struct HotForms {
  static constexpr HotKernels kForm[kForms] = {
      hot_kernels<T, Precision, math::GeluForm::tanh>(),
      hot_kernels<T, Precision, math::GeluForm::erf>(),
      hot_kernels<T, Precision, math::GeluForm::sigmoid>()};
};

// By bridge_dtype and bridge_gelu_form.
constexpr const HotKernels* kHotKernels[kDtypes] = {
    HotForms<math::float16, math::Half>::kForm, HotForms<math::bfloat16, math::Half>::kForm,
    HotForms<float, math::Single>::kForm, HotForms<double, math::Double>::kForm};

// By Arithmetic.
constexpr Kernel kAnyKernels[] = {make_kernel<ChunkKernel, AnyOperands<math::Half>>(),
                                  make_kernel<ChunkKernel, AnyOperands<math::Single>>(),
                                  make_kernel<ChunkKernel, AnyOperands<math::Double>>()};

struct Tree {
  const char* (*launch)(simt::Grid, size_t, void*, const TreeParams&);
  const char* (*load)();
};
constexpr Tree kTreeSingle = {simt::launch<TreeKernel<float>>, simt::load<TreeKernel<float>>};
constexpr Tree kTreeDouble = {simt::launch<TreeKernel<double>>, simt::load<TreeKernel<double>>};

size_t real_bytes(const bridge_bias_gelu& call) {
  return arithmetic_of(call) == Arithmetic::double_ ? sizeof(double) : sizeof(float);
}

// One level of partial sums in the workspace, a whole number of 16-byte units.
size_t level_bytes(const bridge_bias_gelu& call, int64_t nodes) {
  const size_t bytes = static_cast<size_t>(call.batch) * static_cast<size_t>(nodes) *
                       static_cast<size_t>(call.cols) * real_bytes(call);
  return (bytes + 15) / 16 * 16;
}

size_t workspace_bytes_of(const bridge_bias_gelu& call) {
  if (!is_present(call.output.row)) return 0;
  size_t bytes = 0;
  for (int64_t nodes = chunk_count(call.rows); nodes > 1; nodes = ceil_divide(nodes, kTreeWidth)) {
    bytes += level_bytes(call, nodes);
  }
  return bytes;
}

template <class Call, class Visit>
void for_each_full(Call& call, Visit&& visit) {
  visit(call.input.full);
  for (int i = 0; i < call.factors; ++i) {
    if (is_present(call.factor[i].full)) visit(call.factor[i].full);
  }
  if (is_present(call.output.full)) visit(call.output.full);
}

// The kernel compiled for this very kind of call, or NULL.
const Kernel* find_hot(const bridge_bias_gelu& call) {
  const int32_t dtype = call.input.full.dtype;
  const Arithmetic native = is_16_bit(dtype)          ? Arithmetic::half
                            : dtype == BRIDGE_FLOAT32 ? Arithmetic::single
                                                      : Arithmetic::double_;
  bool typed = arithmetic_of(call) == native;
  for_each_full(call, [&](const bridge_array& full) { typed &= full.dtype == dtype; });
  for (int i = 0; i < call.factors; ++i) {
    typed &= is_present(call.factor[i].full) && !is_present(call.factor[i].row);
  }
  if (!typed) return nullptr;
  for (int i = 0; i < kHotCount; ++i) {
    if (kHot[i].order == call.order && kHot[i].factors == call.factors &&
        kHot[i].sums == is_present(call.output.row)) {
      return &kHotKernels[dtype][call.form].kernel[i];
    }
  }
  return nullptr;
}

// Vectors are possible where all full operands lie alike towards 16-byte boundaries, in every row
// and batch. Elsewhere, and in spans shorter than a vector, `whole` is 0.
void align(Params& params, int vector) {
  bridge_bias_gelu& call = params.call;
  const int64_t bytes = dtype_bytes(call.input.full.dtype);
  const uintptr_t offset = reinterpret_cast<uintptr_t>(call.input.full.data) % 16;
  bool alike = vector > 1 && params.span >= vector;
  for_each_full(call, [&](const bridge_array& full) {
    alike &= reinterpret_cast<uintptr_t>(full.data) % 16 == offset;
    alike &= call.rows == 1 || full.row_stride % vector == 0;
    alike &= call.batch == 1 || full.batch_stride % vector == 0;
  });
  params.shift = alike ? static_cast<int64_t>(offset) / bytes : 0;
  params.whole = alike ? params.span - vector + 1 : 0;
}

// The steps of a walk from one row to the next but `rows` - 1.
void set_steps(Params& params, int64_t rows) {
  const bridge_bias_gelu& call = params.call;
  auto bytes = [&](const bridge_array& full) {
    return rows * full.row_stride * dtype_bytes(full.dtype);
  };
  params.row_step = rows;
  params.input_step = bytes(call.input.full);
  for (int i = 0; i < call.factors && i < kMaxHotFactors; ++i) {
    params.factor_step[i] = bytes(call.factor[i].full);
  }
  params.output_step = bytes(call.output.full);
}

int64_t greatest_common_divisor(int64_t a, int64_t b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

// How wide to lay contiguous rows of `cols` elements: a whole number of rows and of vectors, so
// that a thread meets the same columns in every wide row, and slots that fill their blocks.
int64_t wide_row(int64_t elements, int64_t cols, int vector) {
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
// rows whose length is no multiple of a vector are aligned all the same.
void flatten(Params& params, int vector) {
  bridge_bias_gelu& call = params.call;
  const bool bias = is_present(call.input.row);
  const bool batched_bias = bias && call.input.row.batch_stride != 0;
  bool rows_dense = true, batches_dense = !batched_bias;
  for_each_full(call, [&](const bridge_array& full) {
    rows_dense &= call.rows == 1 || full.row_stride == call.cols;
    batches_dense &= call.batch == 1 || full.batch_stride == call.rows * call.cols;
  });
  if (batches_dense && rows_dense) {
    call.rows *= call.batch;
    call.batch = 1;
  } else if (call.rows == 1 && !batched_bias) {
    for_each_full(call, [](bridge_array& full) { full.row_stride = full.batch_stride; });
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
  for_each_full(call, [&](bridge_array& full) { full.row_stride = width; });
  align(params, vector);
  call.rows = ceil_divide(elements + params.shift, width);
}

simt::Grid plan_elementwise(Params& params, int vector) {
  flatten(params, vector);
  const bridge_bias_gelu& call = params.call;
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

simt::Grid plan_chunks(Params& params, int vector) {
  const bridge_bias_gelu& call = params.call;
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

// The chunks' sums to the columns' sums, level by level.
const char* enqueue_tree(const bridge_bias_gelu& call, char* workspace, void* stream) {
  const Tree& tree = real_bytes(call) == sizeof(double) ? kTreeDouble : kTreeSingle;
  TreeParams params{};
  params.batch = call.batch;
  params.count = chunk_count(call.rows);
  params.cols = call.cols;
  params.row = call.output.row;
  for (;;) {
    const int64_t nodes = params.count > 0 ? ceil_divide(params.count, kTreeWidth) : 1;
    params.values = workspace;
    workspace += params.count > 1 ? level_bytes(call, params.count) : 0;
    params.sums = nodes > 1 ? workspace : nullptr;
    simt::Grid grid;
    grid.x = ceil_divide(call.cols, kTreeColumns);
    grid.y = call.batch < simt::kMaxGridYZ / nodes ? call.batch * nodes : simt::kMaxGridYZ;
    if (const char* error = tree.launch(grid, 0, stream, params)) return error;
    if (nodes == 1) return nullptr;
    params.count = nodes;
  }
}

const char* enqueue(const bridge_bias_gelu& call, void* workspace, void* stream) {
  const bool sums = is_present(call.output.row);
  if (call.rows == 0) return sums ? enqueue_tree(call, nullptr, stream) : nullptr;
  Params params{};
  simt::Grid grid;
  const Kernel* kernel = find_hot(call);
  if (kernel != nullptr) {
    params.call = call;
    grid = sums ? plan_chunks(params, kernel->vector) : plan_elementwise(params, kernel->vector);
    if (params.whole == 0) kernel = nullptr;
  }
  if (kernel == nullptr) {
    kernel = &kAnyKernels[static_cast<int>(arithmetic_of(call))];
    params = {};
    params.call = call;
    grid = plan_chunks(params, kernel->vector);
  }
  const bool tree = sums && params.chunks > 1;
  params.partials = tree ? workspace : nullptr;
  if (const char* error = kernel->launch(grid, 0, stream, params)) return error;
  return tree ? enqueue_tree(call, static_cast<char*>(workspace), stream) : nullptr;
}

}  // namespace

const char* load_kernels() {
  for (const HotKernels* forms : kHotKernels) {
    for (int form = 0; form < kForms; ++form) {
      for (const Kernel& kernel : forms[form].kernel) {
        if (const char* error = kernel.load()) return error;
      }
    }
  }
  for (const Kernel& kernel : kAnyKernels) {
    if (const char* error = kernel.load()) return error;
  }
  if (const char* error = kTreeSingle.load()) return error;
  return kTreeDouble.load();
}

}  // namespace bridge::bias_gelu

extern "C" BRIDGE_EXPORT size_t bridge_bias_gelu_cuda_workspace(const bridge_bias_gelu* call) {
  char message[bridge::cuda::kMessageBytes];
  if (call == nullptr || bridge::validate(*call, message, sizeof message) != BRIDGE_OK) return 0;
  return bridge::bias_gelu::workspace_bytes_of(*call);
}

extern "C" BRIDGE_EXPORT bridge_status bridge_bias_gelu_cuda(const bridge_bias_gelu* call,
                                                             void* workspace,
                                                             size_t workspace_bytes, void* stream) {
  using namespace bridge;
  constexpr const char* kName = "bias_gelu";
  if (call == nullptr) return cuda::fail(BRIDGE_INVALID_ARGUMENT, kName, "call is NULL");
  const bridge_status status = validate(*call, cuda::error_message(), cuda::kMessageBytes);
  if (status != BRIDGE_OK) return status;
  if (call->batch == 0 || call->cols == 0) return BRIDGE_OK;
  const size_t needed = bias_gelu::workspace_bytes_of(*call);
  if (needed != 0 && (workspace == nullptr || workspace_bytes < needed ||
                      reinterpret_cast<uintptr_t>(workspace) % 16 != 0)) {
    snprintf(cuda::error_message(), cuda::kMessageBytes,
             "bias_gelu: workspace is %zu bytes at %p, expected %zu bytes at a multiple of 16",
             workspace_bytes, workspace, needed);
    return BRIDGE_INVALID_ARGUMENT;
  }
  const bridge_array& output = is_present(call->output.full) ? call->output.full : call->output.row;
  int previous = -1;
  const char* error = simt::make_current(stream, output.data, &previous);
  if (error == nullptr) error = bias_gelu::enqueue(*call, workspace, stream);
  simt::restore_current(previous);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, kName, error);
}
