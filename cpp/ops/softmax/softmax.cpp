// softmax and its derivative on the CPU: how a call is cut into runs of rows for the threads. The
// arithmetic is in softmax_kernel.cpp and softmax_derivative_kernel.cpp, compiled once for each
// instruction set.
#include "ops/softmax/softmax.h"

#include <stdlib.h>

#include "cpu/error.h"
#include "cpu/huge_pages.h"
#include "cpu/isa.h"
#include "drivers/rows/run_driver.h"
#include "ops/softmax/softmax_kernel.h"

namespace bridge {
namespace {

constexpr PerIsa<SoftmaxKernels> kKernels = BRIDGE_PER_ISA(softmax_kernels);
constexpr PerIsa<SoftmaxDerivativeKernels> kDerivativeKernels =
    BRIDGE_PER_ISA(softmax_derivative_kernels);

// The powers of a row this long wait in a buffer, which stays in the second-level cache.
constexpr int64_t kBufferBytes = int64_t{1} << 20;
// The next rows are fetched ahead, but of arrays that caches have anyway, and of rows that would
// take the place of what is used.
constexpr int64_t kLeastFetched = int64_t{1} << 21, kMostFetchedCols = 16384;
// Rows up to this long use a buffer on the stack.
constexpr int64_t kStackBytes = int64_t{1} << 15;

// A thread's buffer for long rows, kept for the next call.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(data_); }
  // Null without memory.
  void* data() {
    if (data_ == nullptr) data_ = aligned_alloc(64, static_cast<size_t>(kBufferBytes));
    return data_;
  }

 private:
  void* data_ = nullptr;
};

// The space is a checked one: no product of sizes overflows, unless one of them is 0.
int64_t element_count(const bridge_row_space& space) {
  for (int d = 0; d < space.dims; ++d)
    if (space.size[d] == 0) return 0;
  return row_count(space) * space.cols;
}

// How a checked call is run: its rows dealt to the threads, each part in runs.
template <class Call, class Body>
void run_rows(Call& call, const bridge_executor* executor, const Body& body) {
  bool streams = false;
  bridge_row_space& space = call.space;
  RowOperand operands[4];
  const int count = operands_of(call, operands);
  const RowOperand& output = operands[count - 1];
  bool in_place = false;
  for (int i = 0; i < count - 1; ++i) in_place = in_place || operands[i].data == output.data;
  const int64_t elements = element_count(space);
  if (!in_place && check::is_dense(space, output)) {
    int64_t begin = 0, end = 0;
    check::byte_range(space, output, &begin, &end);
    prefer_huge_pages(reinterpret_cast<void*>(begin), end - begin);
    streams = is_streamed(reinterpret_cast<const void*>(begin), end - begin);
  }
  merge_dimensions(space, operands, count);
  const int64_t rows = row_count(space);
  const int64_t parts = parts_for(elements, executor);
  const int64_t tasks = rows < parts ? rows : parts;
  parallel_for(executor, tasks, [&](int64_t task) {
    body(part_begin(rows, tasks, task), part_begin(rows, tasks, task + 1), streams);
  });
}

// What a run has in common with every other of its call.
template <class Run>
void set_rows(const bridge_row_space& space, int64_t rows, int64_t query, Run* run) {
  run->rows = rows;
  run->cols = space.cols;
  run->visible_step = space.causal ? 1 : 0;
  run->visible = space.causal ? query + 1 + space.cols - space.size[space.dims - 1] : space.cols;
}

template <class Offset>
RunOperand run_operand(const bridge_row_space& space, const void* data, const int64_t* stride,
                       int64_t bytes, const Offset& offset) {
  if (data == nullptr) return {nullptr, 0};
  return {static_cast<char*>(const_cast<void*>(data)) + offset(stride) * bytes,
          space.dims == 0 ? 0 : stride[space.dims - 1] * bytes};
}

bridge_status run(const bridge_softmax& given, const bridge_executor* executor) {
  const bridge_status status = validate(given, error_message(), kErrorBytes);
  if (status != BRIDGE_OK) return status;
  bridge_softmax call = given;
  const int64_t elements = element_count(call.space);
  const SoftmaxKernels* const kernels = kKernels.for_elements(elements);
  if (kernels == nullptr) return BRIDGE_INVALID_ARGUMENT;
  if (elements == 0) return BRIDGE_OK;
  const auto kernel = kernels->of[call.dtype];
  const int64_t bytes = element_bytes(call.dtype), real_bytes = bytes == 8 ? 8 : 4;
  SoftmaxRun shared{};
  shared.scale = single_scale(call);
  shared.scale_double = math::softmax_scale<math::Double>(call.scale);
  shared.mask_is_row = call.mask.col_stride == 0;
  run_rows(call, executor, [&](int64_t begin, int64_t end, bool streams) {
    alignas(64) char small_buffer[kStackBytes];
    thread_local Buffer large_buffer;
    SoftmaxRun run = shared;
    run.streams = streams;
    run.fetches = elements >= kLeastFetched && call.space.cols <= kMostFetchedCols;
    run.buffer = small_buffer;
    run.buffered_cols = kStackBytes / real_bytes;
    if (call.space.cols > run.buffered_cols && large_buffer.data() != nullptr) {
      run.buffer = large_buffer.data();
      run.buffered_cols = kBufferBytes / real_bytes;
    }
    for_each_run(call.space, begin, end, [&](int64_t rows, int64_t query, const auto& offset) {
      set_rows(call.space, rows, query, &run);
      run.x = run_operand(call.space, call.x.data, call.x.stride, bytes, offset);
      run.mask = run_operand(call.space, call.mask.data, call.mask.stride, 1, offset);
      run.output = run_operand(call.space, call.output.data, call.output.stride, bytes, offset);
      kernel(run);
    });
  });
  return BRIDGE_OK;
}

bridge_status run(const bridge_softmax_derivative& given, const bridge_executor* executor) {
  const bridge_status status = validate(given, error_message(), kErrorBytes);
  if (status != BRIDGE_OK) return status;
  bridge_softmax_derivative call = given;
  const int64_t elements = element_count(call.space);
  const SoftmaxDerivativeKernels* const kernels = kDerivativeKernels.for_elements(elements);
  if (kernels == nullptr) return BRIDGE_INVALID_ARGUMENT;
  if (elements == 0) return BRIDGE_OK;
  const auto kernel =
      call.w.data == nullptr ? kernels->jacobian[call.dtype] : kernels->derivative[call.dtype];
  const int64_t bytes = element_bytes(call.dtype);
  run_rows(call, executor, [&](int64_t begin, int64_t end, bool streams) {
    SoftmaxDerivativeRun run{};
    run.streams = streams;
    run.terms = call.terms;
    run.scale = call.scale;
    for_each_run(call.space, begin, end, [&](int64_t rows, int64_t query, const auto& offset) {
      set_rows(call.space, rows, query, &run);
      auto at = [&](const bridge_rows& operand) {
        return run_operand(call.space, operand.data, operand.stride, bytes, offset);
      };
      run.u = at(call.u);
      run.v = at(call.v);
      run.w = at(call.w);
      run.output = at(call.output);
      kernel(run);
    });
  });
  return BRIDGE_OK;
}

template <class Call>
bridge_status guarded(const char* op, const Call* call, const bridge_executor* executor) {
  if (call == nullptr) return fail(BRIDGE_INVALID_ARGUMENT, "%s: the call is null", op);
  try {
    return run(*call, executor);
  } catch (...) {
    return fail(BRIDGE_INTERNAL, "%s: an unexpected exception", op);
  }
}

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_softmax_cpu(const bridge_softmax* call,
                                            const bridge_executor* executor) {
  return bridge::guarded("softmax", call, executor);
}

extern "C" bridge_status bridge_softmax_derivative_cpu(const bridge_softmax_derivative* call,
                                                       const bridge_executor* executor) {
  return bridge::guarded("softmax_derivative", call, executor);
}
