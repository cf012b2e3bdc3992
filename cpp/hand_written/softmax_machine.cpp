// The machines of softmax and its Jacobian, compiled once for each instruction set: they find the
// rows of a call of their program and pass them to the kernels in runs.
#include "hand_written/softmax_machine.h"

#include "cpu/tile.h"
#include "hand_written/softmax_kernel.h"
#include "hand_written/softmax_scale.h"
#include "program/interpreter.h"
#include "tiles/memory_parts.h"
#include "tiles/position.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using interpreter::ColumnSplit;
using interpreter::Role;
using interpreter::Rows;
using interpreter::View;

// The largest buffer, which stays in the second-level cache. The powers of a longer row are
// computed twice.
constexpr int64_t kBufferBytes = int64_t{1} << 20;
constexpr int64_t kLeastBuffered = 64;  // elements: keys are made in blocks
// The next row is prefetched, except for small arrays, which are in a cache, and for long rows,
// which would evict the current one.
constexpr int64_t kLeastFetched = int64_t{1} << 21, kMostFetchedCols = 16384;
constexpr int kMostOperands = 4;

// The scratch memory of a run: the powers of a row, and copies of rows whose elements are not
// adjacent.
struct Memory {
  void* buffer;
  int64_t buffered_cols;
  char* row[kMostOperands + 1] =
      {};  // of the operands, then of the result; null for adjacent elements

  Memory(MemoryParts& parts, const View& view, const bridge_program& call, int64_t,
         const ColumnSplit&) {
    const int64_t real_bytes = interpreter::is_double(call) ? 8 : 4;
    buffered_cols = smaller(round_up(call.cols), kBufferBytes / real_bytes);
    if (buffered_cols < kLeastBuffered) buffered_cols = kLeastBuffered;
    buffer = parts.take<char>(buffered_cols * real_bytes);
    for (int32_t i = 0; i < call.operands; ++i)
      if (view.operand_role(i) != Role::label)
        row[i] = row_of(parts, call, call.operand[i], view.operand_role(i) == Role::mask);
    row[kMostOperands] = row_of(parts, call, call.result[0], false);
  }

 private:
  // `may_repeat`: a single element may serve the whole row.
  static char* row_of(MemoryParts& parts, const bridge_program& call,
                      const bridge_program_array& array, bool may_repeat) {
    const bool is_adjacent =
        array.col_stride == 1 || (array.col_stride == 0 && may_repeat) || call.cols <= 1;
    return is_adjacent ? nullptr : parts.take<char>(call.cols * element_bytes(array.dtype));
  }
};

class Caller {
 public:
  Caller(const View& view, const bridge_program& call, const Rows& rows, MemoryParts parts)
      : call_(call), rows_(rows), memory_(parts, view, call, 0, {}), last_(call.operands - 1) {
    has_last_ = view.operand_role(last_) == Role::label;
    for (char* row : memory_.row) is_gathered_ = is_gathered_ || row != nullptr;
  }

  // Calls kernel(run) for runs of rows. place(run) sets the run's operands by `operand`.
  template <class OneRun, class Place>
  void run(OneRun& run, void (*kernel)(const OneRun&), const Place& place) {
    if (call_.cols == 0) return;  // then a mask has no byte for a row
    run.cols = call_.cols;
    run.streams = !is_gathered_ && (rows_.streamed & 1) != 0;
    here_.walk(rows_, is_gathered_ ? 1 : rows_.count, [&] {
      run.rows = here_.count;
      if (has_last_) {
        run.last = operand(last_);
        run.last_dtype = call_.operand[last_].dtype;
      }
      place(run);
      kernel(run);
      if (memory_.row[kMostOperands] != nullptr) scatter_result();
    });
  }

  RunOperand operand(int32_t i) {
    const bridge_program_array& array = call_.operand[i];
    const int64_t bytes = element_bytes(array.dtype);
    if (memory_.row[i] == nullptr) return {here_.data(array), here_.row_stride(array) * bytes};
    gather(bytes, here_.data(array), array.col_stride, memory_.row[i], call_.cols);
    return {memory_.row[i], 0};
  }
  RunOperand output() {
    const bridge_program_array& array = call_.result[0];
    if (char* const row = memory_.row[kMostOperands]) return {row, 0};
    return {here_.data(array), here_.row_stride(array) * element_bytes(array.dtype)};
  }
  const Memory& memory() const { return memory_; }
  bool has_last() const { return has_last_; }
  bool is_gathered() const { return is_gathered_; }

 private:
  void scatter_result() {
    const bridge_program_array& array = call_.result[0];
    scatter(element_bytes(array.dtype), memory_.row[kMostOperands], here_.data(array),
            array.col_stride, call_.cols);
  }

  const bridge_program& call_;
  const Rows& rows_;
  Memory memory_;
  int32_t last_;
  bool has_last_ = false, is_gathered_ = false;
  Position here_{call_};
};

void run_softmax(const View& view, const bridge_program& call, const Rows& rows, const ColumnSplit&,
                 void* scratch) {
  Caller caller(view, call, rows, MemoryParts(scratch));
  const int32_t dtype = call.operand[0].dtype;
  SoftmaxRun run{};
  set_scale(view, dtype, &run.scale, &run.scale_double);
  run.buffer = caller.memory().buffer;
  run.buffered_cols = caller.memory().buffered_cols;
  const interpreter::Counts counts = interpreter::counts_of(call);
  run.fetches = !caller.is_gathered() && call.cols <= kMostFetchedCols &&
                counts.batches * counts.rows * call.cols >= kLeastFetched;
  const bool has_mask = call.operands > 1 + caller.has_last();
  run.mask_is_row = has_mask && call.operand[1].col_stride == 0;
  caller.run(run, softmax_kernels.of[dtype], [&](SoftmaxRun& now) {
    now.x = caller.operand(0);
    if (has_mask) now.mask = caller.operand(1);
    now.output = caller.output();
  });
}

void run_jacobian(const View& view, const bridge_program& call, const Rows& rows,
                  const ColumnSplit&, void* scratch) {
  Caller caller(view, call, rows, MemoryParts(scratch));
  JacobianRun run{};
  run.scale = parameter(view, 0);
  caller.run(run, jacobian_kernels.of[call.operand[0].dtype], [&](JacobianRun& now) {
    now.u = caller.operand(0);
    now.v = caller.operand(1);
    now.output = caller.output();
  });
}

}  // namespace

constexpr SoftmaxMachines softmax_machines = {
    {scratch_bytes<Memory>, run_softmax, nullptr, true, true},
    {scratch_bytes<Memory>, run_jacobian, nullptr, true, true}};

}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge
